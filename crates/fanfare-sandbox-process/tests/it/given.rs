//! Secrets and configuration files inside of sandboxes, and nowhere else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfare_sandbox::Runtime;
use fanfare_types::{
    ConfigFile, Contract, Given, RevisionSpec, SecretName, SecretPlace, SecretUse, SecretValue,
    StartFailureKind, StopMode,
};

use crate::cases;
use crate::support::{Lab, ask, block_on, revision};

cases![
    secrets_are_files_and_variables_of_their_own_sandboxes_alone,
    a_new_value_reaches_running_files_and_later_variables,
    a_sandbox_does_not_start_without_its_secrets,
    what_a_revision_was_given_goes_with_it,
];

/// A new value is to be there within a second; ten times that is a failure on any machine.
const SOON: Duration = Duration::from_secs(10);

/// Executes what it is sent; what the module saw when it was imported is in `AT_IMPORT`.
const EVAL: &str = r#"
import os
AT_IMPORT = os.environ.get("DB")
def handler(event, context):
    scope = {"AT_IMPORT": AT_IMPORT}
    exec(event, scope)
    return str(scope["out"])
"#;

fn given() -> Given {
    let used = |place| SecretUse { secret: SecretName::new("db").unwrap(), place };
    Given {
        secrets: vec![used(SecretPlace::Env("DB".into())), used(SecretPlace::File("db.txt".into()))],
        files: vec![ConfigFile { path: "app/config.json".into(), content: b"{\"a\": 1}"[..].into() }],
    }
}

fn value(text: &str) -> Vec<(SecretName, SecretValue)> {
    vec![(SecretName::new("db").unwrap(), SecretValue::new(text.as_bytes().to_vec()))]
}

/// The same handler forked from a template, and a program that is started by itself.
fn both(lab: &Lab) -> [RevisionSpec; 2] {
    let code = Some(lab.codes.add(lab.dir.path(), &[("f.py", EVAL)]));
    let python = revision(1, code, Contract::Python { file: "f.py".into(), handler: "handler".into() });
    [python, lab.probe(2)].map(|spec| RevisionSpec { given: given(), ..spec })
}

/// Runs code that sets `out`.
async fn eval(endpoint: &str, code: &str) -> String {
    // The program prints; the handler answers.
    let both = format!("{code}\nif __name__ == 'probe': print(out)");
    let (status, body) = ask(endpoint, &both).await.unwrap();
    assert_eq!(status, 200, "{body}");
    body.trim_end().trim_matches('"').to_owned()
}

const LOOK: &str = r#"
import os, stat
path = "/run/secrets/db.txt"
meta = os.stat(path)
try:
    open("/run/secrets/other", "w")
    writable = True
except OSError as e:
    writable = e.errno
out = "%s %s %o %s %s %s" % (
    open(path).read(), os.environ["DB"], meta.st_mode & 0o7777, meta.st_uid == os.geteuid(), writable,
    open("/run/config/app/config.json").read())
"#;

/// Reads every file that can be read, what other processes were started with, and whatever leads out of here.
const SEARCH: &str = r#"
import os
found, read = [], 0
def look(path, depth):
    global read
    try:
        if os.path.isdir(path) and (depth == 0 or not os.path.islink(path)):
            for name in os.listdir(path):
                if path == "/" and name in ("usr", "sys", "dev", "proc"): continue
                if depth < 12: look(os.path.join(path, name), depth + 1)
        elif os.path.isfile(path) and os.path.getsize(path) < 1 << 20:
            with open(path, "rb") as file:
                read += 1
                if b"can" + b"ary" in file.read(): found.append(path)
    except OSError:
        pass
look("/", 0)
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    for name in ("environ", "cmdline"):
        try:
            with open("/proc/%s/%s" % (pid, name), "rb") as file:
                read += 1
                if b"can" + b"ary" in file.read(): found.append(pid + name)
        except OSError:
            pass
    look("/proc/%s/root/run/secrets" % pid, 0)
    look("/proc/%s/cwd" % pid, 0)
    for fd in (os.listdir("/proc/%s/fd" % pid) if os.access("/proc/%s/fd" % pid, os.R_OK) else []):
        look("/proc/%s/fd/%s/" % (pid, fd), 0)
out = "%s %s" % (found, read > 5)
"#;

fn secrets_are_files_and_variables_of_their_own_sandboxes_alone() {
    block_on(async {
        let lab = Lab::new().await;
        for (n, spec) in (1..).zip(both(&lab)) {
            lab.runtime.secrets(spec.id, value("canary"));
            lab.runtime.prepare(Arc::new(spec.clone())).await.unwrap();
            let started = lab.create(n, &spec).await.unwrap();
            let seen = eval(&started.endpoint, LOOK).await;
            assert_eq!(seen.replace('\\', ""), "canary canary 400 True 30 {\"a\": 1}", "30 is EROFS");
            let found = eval(&started.endpoint, SEARCH).await;
            assert!(
                found.contains("/run/secrets/db.txt") && found.contains("environ"),
                "it can be found: {found}"
            );
        }
        // Neighbours without secrets, and with others, while the first ones run.
        let [mut python, mut program] = both(&lab);
        python.id.function.0 = 11;
        program.id.function.0 = 12;
        program.given = Given::default();
        lab.runtime.secrets(python.id, value("own"));
        for (n, spec) in [(11, python), (12, program)] {
            let started = lab.create(n, &spec).await.unwrap();
            assert_eq!(eval(&started.endpoint, SEARCH).await, "[] True");
        }
        // Nor is there a way from the machine: the directory is empty outside of the launcher's view.
        let outside = lab.dir.path().join("run").join("given");
        assert_eq!(std::fs::read_dir(outside).unwrap().count(), 0);
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn a_new_value_reaches_running_files_and_later_variables() {
    block_on(async {
        let lab = Lab::new().await;
        for (n, spec) in (1..).zip(both(&lab)) {
            lab.runtime.secrets(spec.id, value("first"));
            let started = lab.create(n, &spec).await.unwrap();
            let read = "out = open('/run/secrets/db.txt').read() + ' ' + __import__('os').environ['DB']";
            assert_eq!(eval(&started.endpoint, read).await, "first first");
            let began = Instant::now();
            lab.runtime.secrets(spec.id, value("second, and longer"));
            loop {
                match eval(&started.endpoint, read).await.as_str() {
                    "first first" => assert!(began.elapsed() < SOON, "not yet"),
                    seen => {
                        assert_eq!(seen, "second, and longer first", "never a part of it");
                        break;
                    }
                }
            }
            // The next one has it everywhere, also where a template was imported before.
            let later = lab.create(n + 10, &spec).await.unwrap();
            let all = format!("{read} + ' ' + str(globals().get('AT_IMPORT', 'second, and longer'))");
            let wanted = "second, and longer second, and longer second, and longer";
            assert_eq!(eval(&later.endpoint, &all).await, wanted);
            assert_eq!(
                eval(&started.endpoint, read).await,
                "second, and longer first",
                "the old one lives on"
            );
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn a_sandbox_does_not_start_without_its_secrets() {
    block_on(async {
        let lab = Lab::new().await;
        for (n, spec) in (1..).zip(both(&lab)) {
            let other = vec![(SecretName::new("other").unwrap(), SecretValue::new(vec![1]))];
            for told in [Vec::new(), other] {
                lab.runtime.secrets(spec.id, told);
                let failure = lab.create(n, &spec).await.unwrap_err();
                assert_eq!(failure.kind, StartFailureKind::SecretMissing, "{failure:?}");
                assert!(failure.detail.contains("the secret \"db\""), "{failure:?}");
            }
            // No text, where a variable must be.
            let bytes = vec![(SecretName::new("db").unwrap(), SecretValue::new(vec![255, 0]))];
            lab.runtime.secrets(spec.id, bytes);
            let failure = lab.create(n, &spec).await.unwrap_err();
            assert_eq!(failure.kind, StartFailureKind::SecretMissing, "{failure:?}");
            lab.runtime.secrets(spec.id, value("there"));
            lab.create(n, &spec).await.unwrap();
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn what_a_revision_was_given_goes_with_it() {
    block_on(async {
        let lab = Lab::new().await;
        for (n, spec) in (1..).zip(both(&lab)) {
            lab.runtime.secrets(spec.id, value("first"));
            lab.create(n, &spec).await.unwrap();
            lab.stop(n, StopMode::Kill).await;
            lab.runtime.forget(spec.id).await;
            // Not even what was told is kept.
            let failure = lab.create(n, &spec).await.unwrap_err();
            assert_eq!(failure.kind, StartFailureKind::SecretMissing, "{failure:?}");
            lab.runtime.secrets(spec.id, value("again"));
            let started = lab.create(n + 10, &spec).await.unwrap();
            assert_eq!(eval(&started.endpoint, "out = open('/run/secrets/db.txt').read()").await, "again");
        }
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}
