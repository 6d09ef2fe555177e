//! Secrets as functions get them, and as nothing else does.

use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::cluster::{Answer, Arrangement, Cluster, leftovers, root};
use crate::in_both_arrangements;

/// Answers with what it was given, so that a test can see it.
const SHOW: &str = r#"
import os
AT_IMPORT = os.environ.get("DB")
def handler(event, context):
    return "|".join([open("/run/secrets/db.txt").read(), os.environ["DB"], AT_IMPORT,
        open("/run/config/app/mode.txt").read(), context.sandbox_id])
"#;

/// Uses what it was given without a word of it, and fails in several ways.
const USE: &str = r#"
import hashlib, os, time
def handler(event, context):
    value = open("/run/secrets/db.txt").read()
    if event.get("do") == "raise": raise ValueError("out of order")
    if event.get("do") == "exit": os._exit(3)
    if event.get("do") == "sleep": time.sleep(30)
    print("used a value of", len(value))
    return {"same": value == os.environ["DB"], "digest": hashlib.sha256(("salt" + value).encode()).hexdigest()}
"#;

/// Runs the CLI with this on its standard input.
fn cli_with_input(cluster: &Cluster, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fanfare"))
        .args(args)
        .env("FANFARE_API", &cluster.api)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn set(cluster: &Cluster, name: &str, value: &str) -> Output {
    let output = cli_with_input(cluster, &["secret", "set", name, "--debug"], value);
    assert!(output.status.success(), "{output:?}");
    output
}

const GIVEN: [&str; 4] = ["--secret", "db=env:DB", "--secret", "db=file:db.txt"];

in_both_arrangements!(a_secret_reaches_its_function_and_a_new_value_needs_no_redeploy);

async fn a_secret_reaches_its_function_and_a_new_value_needs_no_redeploy(cluster: Cluster) -> Cluster {
    let file = cluster.file("show.py", SHOW);
    let mode = format!("app/mode.txt={}", cluster.file("mode.txt", "fast").display());
    let mut deploy = vec!["deploy", file.to_str().unwrap(), "--file", &mode];
    deploy.extend(GIVEN);
    let refused = cluster.cli(&deploy);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(
        told.contains("there is no secret \"db\"") && told.contains("fanfare secret set db < FILE"),
        "{told}"
    );

    set(&cluster, "db", "first");
    cluster.cli_ok(&deploy);
    let first = cluster.call("show", "").await;
    let sandbox = first.text().rsplit('|').next().unwrap().to_owned();
    assert_eq!(first.text(), format!("first|first|first|fast|{sandbox}"));
    let described = cluster.cli_ok(&["describe", "show"]);
    assert!(
        described.contains("db as /run/secrets/db.txt") && described.contains("db as variable DB"),
        "{described}"
    );

    set(&cluster, "db", "second");
    let rotated = format!("second|first|first|fast|{sandbox}");
    cluster
        .until("the file has the new value", async || cluster.call("show", "").await.text() == rotated)
        .await;
    assert_eq!(cluster.status_of("show").await["revision"], 1, "nothing was deployed");

    let kept = cluster.cli(&["secret", "delete", "db"]);
    let told = String::from_utf8_lossy(&kept.stderr).into_owned();
    assert_eq!(kept.status.code(), Some(2), "{told}");
    assert!(told.contains("secret-in-use") && told.contains("used by show"), "{told}");
    // A variable has the new value in the next sandbox.
    cluster.cli_ok(&["update", "show", "--timeout", "59s"]);
    cluster
        .until("the next sandbox has it everywhere", async || {
            cluster.call("show", "").await.text().starts_with("second|second|second|fast|")
        })
        .await;
    cluster.cli_ok(&["delete", "show"]);
    cluster.cli_ok(&["secret", "delete", "db"]);
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_arrive_again_after_kill_9_of_the_node_and_of_the_control_plane() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    set(&cluster, "db", "first");
    let mode = format!("app/mode.txt={}", cluster.file("mode.txt", "fast").display());
    cluster.deploy_python("show", SHOW, &[&GIVEN[..], &["--file", &mode]].concat());
    assert!(cluster.call("show", "").await.text().starts_with("first|first|"));
    // The leader that follows knows it, and tells a node that goes on with the sandboxes that it had.
    cluster.kill("control-plane");
    cluster.respawn("control-plane");
    cluster.wait_until_complete(1).await;
    let before = cluster.call("show", "").await.text().to_owned();
    set(&cluster, "db", "second");
    let rotated = before.replacen("first|", "second|", 1);
    cluster
        .until("the running sandbox has it", async || cluster.call("show", "").await.text() == rotated)
        .await;
    // A node that begins anew is told before it starts anything.
    cluster.kill("node");
    cluster.respawn("node");
    cluster.wait_until_complete(1).await;
    cluster
        .until("the next sandbox has it", async || {
            let answer = cluster.call("show", "").await;
            answer.status == 200 && answer.text().starts_with("second|second|second|fast|")
        })
        .await;
    cluster.shut_down();
}

/// The forms in which a value could be written somewhere.
struct Canary {
    value: String,
    forms: Vec<Vec<u8>>,
}

impl Canary {
    fn new(what: &str) -> Canary {
        let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let value = format!("{what}/{:016x}+{:016x}", random(), random());
        let bytes = value.as_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let percent = value.replace('/', "%2F").replace('+', "%2B");
        let list = format!("{bytes:?}");
        let mut forms: Vec<Vec<u8>> = [
            value.clone(),
            hex.to_uppercase(),
            hex,
            percent.to_lowercase(),
            percent,
            value.replace('/', "\\/"),
            list.trim_matches(['[', ']']).to_owned(),
            list.trim_matches(['[', ']']).replace(", ", ","),
        ]
        .map(String::into_bytes)
        .into();
        // In base64, wherever it begins within a group of three; without the groups that it shares with its neighbours.
        for before in 0..3 {
            let shifted = [&b"\0\0"[..before], bytes].concat();
            let (first, last) = (before.div_ceil(3) * 4, shifted.len() / 3 * 4);
            for url in [false, true] {
                forms.push(base64(&shifted, url).as_bytes()[first..last].to_vec());
            }
        }
        Canary { value, forms }
    }

    /// The form of it that is in `bytes`.
    fn find(&self, bytes: &[u8]) -> Option<&[u8]> {
        self.forms
            .iter()
            .find(|form| bytes.windows(form.len()).any(|window| window == **form))
            .map(Vec::as_slice)
    }

    /// Fails where any form of it is in `bytes`.
    fn must_not_be_in(&self, place: &str, bytes: &[u8]) {
        if let Some(form) = self.find(bytes) {
            panic!("{} is in {place}", String::from_utf8_lossy(form));
        }
    }
}

#[test]
fn a_canary_is_recognized_in_every_form() {
    let canary = Canary::new("what");
    let value = &canary.value;
    let hex: String = value.bytes().map(|byte| format!("{byte:02X}")).collect();
    let percent = value.replace('/', "%2f").replace('+', "%2b");
    let mut written =
        vec![value.clone(), hex.to_lowercase(), hex, percent, format!("{:?}", value.as_bytes())];
    for (before, after) in [("", ""), ("a", "b"), ("ab", "bc"), ("abc", ""), ("abcd", "xyz")] {
        for url in [false, true] {
            written.push(base64(format!("{before}{value}{after}").as_bytes(), url));
        }
    }
    for text in written {
        assert!(canary.find(format!("x{text}y").as_bytes()).is_some(), "{text}");
        assert!(Canary::new("what").find(text.as_bytes()).is_none(), "{text}");
    }
    assert_eq!(base64(b"any+/", false), "YW55Ky8A".to_owned());
}

fn base64(bytes: &[u8], url: bool) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| match (bits & 63, url) {
        (62, true) => '-',
        (63, true) => '_',
        (bits, _) => char::from(DIGITS[bits as usize]),
    };
    let group = |three: &[u8]| {
        let bits =
            three.iter().chain([0, 0].iter()).take(3).fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| digit(bits >> shift)).iter().collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

fn descendants(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    children.iter().flat_map(|child| std::iter::once(*child).chain(descendants(*child))).collect()
}

/// Whatever the system has written, and the command lines of its processes.
fn search(cluster: &Cluster, canaries: &[&Canary]) {
    let found = files(cluster.dir.path());
    assert!(found.len() > 5, "{found:?}");
    let logs = cluster.logs();
    for canary in canaries {
        for file in &found {
            if let Ok(bytes) = std::fs::read(file) {
                canary.must_not_be_in(&file.display().to_string(), &bytes);
            }
        }
        canary.must_not_be_in("the processes' logs", logs.as_bytes());
        for process in &cluster.processes {
            let own = process.child.id();
            for pid in std::iter::once(own).chain(descendants(own)) {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                canary.must_not_be_in(&format!("the command line of {pid}"), &line);
            }
            let environ = std::fs::read(format!("/proc/{own}/environ")).unwrap_or_default();
            canary.must_not_be_in(&format!("the environment of {}", process.role), &environ);
        }
    }
}

/// Senders that are believed and such that are not, of a webhook that keeps calls and of one that waits for the answer.
async fn deliveries(cluster: &Cluster, token: &str, hear: &mut impl FnMut(&str, Output)) -> Vec<Answer> {
    let set = ["webhook", "set", "--verify", "token", "--secret", "hook", "--debug"];
    hear("webhook set", cluster.cli(&[&set[..], &["pushes", "use"]].concat()));
    hear("webhook set", cluster.cli(&[&set[..], &["asks", "use", "--wait"]].concat()));
    let bearer = format!("Bearer {token}");
    let nearly = format!("Bearer {token}x");
    let in_url = format!("?token={}&x=1", token.replace('/', "%2F").replace('+', "%2B"));
    let nearly_in_url = in_url.replace("&x", "x&x");
    let mut answers = Vec::new();
    let mut kept = Vec::new();
    for name in ["pushes", "asks"] {
        let sent = [
            (Some(&bearer), "", true),
            (None, in_url.as_str(), true),
            (Some(&nearly), "", false),
            (None, nearly_in_url.as_str(), false),
            (None, "", false),
        ];
        for (field, query, believed) in sent {
            let url = format!("{}/webhook/{name}{query}", cluster.data_planes[0]);
            let fields: Vec<_> = field.iter().map(|value| ("authorization", value.as_str())).collect();
            let answer = cluster.send("POST", &url, &fields, "{}").await;
            let expected = if !believed {
                401
            } else if name == "pushes" {
                202
            } else {
                200
            };
            assert_eq!(answer.status, expected, "{name}: {}", answer.text());
            kept.extend(answer.header("x-fanfare-invocation-id").map(str::to_owned));
            answers.push(answer);
        }
    }
    assert_eq!(kept.len(), 2, "one for each call that is kept: {answers:?}");
    for id in &kept {
        for what in [format!("/async/{id}?wait=20s"), format!("/async/{id}/result")] {
            let answer = cluster.send("GET", &format!("{}{what}", cluster.data_planes[0]), &[], "").await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            answers.push(answer);
        }
        hear("async status", cluster.cli(&["async", "status", id, "-o", "json"]));
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_canary_is_found_nowhere_but_where_its_function_has_it() {
    if !root() {
        return;
    }
    let (first, second, hook) = (Canary::new("first"), Canary::new("second"), Canary::new("hook"));
    let mut cluster = Cluster::start_traced(Arrangement::Apart { data_planes: 1 }).await;
    let mut said: Vec<(String, Vec<u8>)> = Vec::new();
    let mut hear = |what: &str, output: Output| {
        said.push((what.to_owned(), output.stdout));
        said.push((what.to_owned(), output.stderr));
    };
    hear("secret set", set(&cluster, "db", &first.value));
    let file = cluster.file("use.py", USE);
    let mut deploy = vec!["deploy", file.to_str().unwrap(), "--debug", "--timeout", "2s"];
    deploy.extend(GIVEN);
    hear("deploy", cluster.cli(&deploy));

    let mut answers = Vec::new();
    for canary in [&first, &second] {
        if std::ptr::eq(canary, &second) {
            hear("secret set", set(&cluster, "db", &second.value));
        }
        // Once the variable and the file agree; the digest is the function's own.
        cluster.cli_ok(&["update", "use", "--env", &format!("TRY={}", answers.len())]);
        cluster
            .until("the value is there everywhere", async || {
                let answer = cluster.call("use", "{}").await;
                answer.status == 200 && answer.json()["same"] == true
            })
            .await;
        for body in ["{}", r#"{"do":"raise"}"#, r#"{"do":"exit"}"#, r#"{"do":"sleep"}"#] {
            answers.push(cluster.call("use", body).await);
        }
    }
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 502, 502, 504, 200, 502, 502, 504]);
    // What cannot start: a value that is no variable, and one that is malformed.
    for body in [r#"{"value":5}"#.to_owned(), format!(r#"{{"value":"{}\u0000"}}"#, second.value)] {
        let refused = cluster.api("PUT", "/v1/secrets/db", Some(&body)).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
        answers.push(refused);
    }
    hear("secret set", set(&cluster, "hook", &hook.value));
    answers.extend(deliveries(&cluster, &hook.value, &mut hear).await);
    let ids: Vec<String> =
        answers.iter().filter_map(|answer| answer.header("x-request-id")).map(str::to_owned).collect();
    for path in [
        "/metrics",
        "/v1/openapi.json",
        "/v1/status",
        "/v1/nodes",
        "/v1/secrets",
        "/v1/secrets/db",
        "/v1/functions",
        "/v1/functions/use",
        "/v1/functions/use/revisions",
        "/v1/functions/use/logs?tail=1000",
        "/v1/secrets/hook",
        "/v1/webhooks",
        "/v1/webhooks/pushes",
    ] {
        let answer = cluster.api("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answers.push(answer);
    }
    for answer in &answers {
        for canary in [&first, &second, &hook] {
            canary.must_not_be_in("an answer", &answer.body);
            canary.must_not_be_in("an answer's head", format!("{:?}", answer.headers).as_bytes());
        }
    }
    let verbs: [&[&str]; 19] = [
        &["list", "-o", "wide"],
        &["describe", "use"],
        &["describe", "use", "-o", "json"],
        &["describe", "use", "-o", "yaml"],
        &["revisions", "use", "-o", "wide"],
        &["logs", "use", "--tail", "1000"],
        &["top", "-o", "json"],
        &["status", "-o", "json"],
        &["secret", "list", "-o", "json"],
        &["secret", "describe", "db", "-o", "yaml"],
        &["secret", "delete", "db", "--debug"],
        &["update", "use", "--max", "5", "--debug"],
        &["deploy", "--runtime", "fake", "--name", "other", "--secret", "none=env:X"],
        &["doctor", "-o", "json"],
        &["webhook", "list", "-o", "wide"],
        &["webhook", "describe", "pushes", "--debug"],
        &["webhook", "describe", "pushes", "-o", "yaml"],
        &["secret", "delete", "hook", "--debug"],
        &["async", "list", "-o", "json"],
    ];
    for verb in verbs {
        hear(&verb.join(" "), cluster.cli(verb));
    }
    for id in &ids {
        hear("explain", cluster.cli(&["explain", id, "-o", "json"]));
    }
    for (what, output) in &said {
        for canary in [&first, &second, &hook] {
            canary.must_not_be_in(what, output);
        }
    }

    assert!(cluster.logs().contains("TRACE"), "everything is said");
    // It is where its function has it, so a search could find it ...
    cluster.until("a sandbox runs", async || cluster.call("use", "{}").await.status == 200).await;
    let node = cluster.processes.iter().find(|process| process.role == "node").unwrap().child.id();
    let read = |pid| std::fs::read(format!("/proc/{pid}/root/run/secrets/db.txt")).ok();
    let holders = descendants(node).into_iter().filter_map(read).collect::<Vec<_>>();
    assert!(holders.iter().any(|held| *held == second.value.as_bytes()), "{} have files", holders.len());
    // ... and nowhere else.
    search(&cluster, &[&first, &second, &hook]);

    // After kill -9 of the node nothing of it is anywhere, not even where its function had it.
    cluster.kill("node");
    let run = cluster.dir.path().join("run");
    cluster
        .until("its processes are gone", async || leftovers(&run).iter().all(|l| !l.starts_with("process")))
        .await;
    search(&cluster, &[&first, &second, &hook]);
    cluster.respawn("node");
    cluster.wait_until_complete(1).await;
    cluster.until("calls are answered again", async || cluster.call("use", "{}").await.status == 200).await;
    search(&cluster, &[&first, &second, &hook]);
    cluster.shut_down();
}
