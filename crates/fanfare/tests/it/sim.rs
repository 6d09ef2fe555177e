//! `fanfare sim`: nobody is there, and what it says can be worked out by hand where the load is simple.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::load::trace;
use crate::run::{Run, fanfare};

/// Nobody is there, and nobody is asked.
const NOWHERE: &str = "http://127.0.0.1:1";
/// Nothing takes any time but user code.
const AT_ONCE: [&str; 4] = ["--create-delay", "0ms", "--message-delay", "0ms"];
/// A node holds one sandbox.
const ONE_EACH: [&str; 4] = ["--node-cpus", "1", "--cpu-request", "1"];

async fn sim(args: &[&str]) -> Run {
    fanfare(NOWHERE, &[&["sim"], args].concat()).await
}

/// What `-o json` says.
async fn simulated(args: &[&str]) -> Value {
    let run = sim(&[args, &["-o", "json"]].concat()).await;
    assert_eq!(run.code, 0, "{args:?}: {run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// A plan of requests that come when the stable window of the one before is over.
fn rare(directory: &Path) -> String {
    plan(directory, 1, 4, 120_000, 1_000)
}

/// A plan of so many functions in turn, one invocation every `gap_ms`, each of which takes `execution_ms`.
fn plan(directory: &Path, functions: u32, invocations: u32, gap_ms: u32, execution_ms: u32) -> String {
    let span_us = u64::from(invocations) * u64::from(gap_ms) * 1_000;
    let mut text = format!("fanfare-plan,1\nseed,1\nsource,by hand\nspan_us,{span_us}\nwarm_up_us,0\n");
    writeln!(text, "functions,{functions}\nname,memory_mib,initial,min,max").unwrap();
    (0..functions).for_each(|number| writeln!(text, "f{number},16,0,0,0").unwrap());
    writeln!(text, "invocations,{invocations}\nat_us,function,execution_ms,memory_mib,column").unwrap();
    for number in 0..invocations {
        let at_us = u64::from(number) * u64::from(gap_ms) * 1_000;
        writeln!(text, "{at_us},{},{execution_ms},1,0", number % functions).unwrap();
    }
    let path = directory.join("by-hand.csv");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Values of one column of the invocations that `--out` wrote.
fn column(directory: &Path, name: &str) -> Vec<String> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("experiment_duration_"))
        .collect();
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let mut lines = text.lines();
    let at = lines.next().unwrap().split(',').position(|of| of == name).unwrap();
    lines.map(|line| line.split(',').nth(at).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn with_room_and_without_delays_nothing_is_slowed_down() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(dir.path());
    let report = simulated(&[&["--trace", &trace][..], &AT_ONCE].concat()).await;
    let run = &report["runs"][0];
    assert_eq!((&run["counts"]["ok"], &run["counts"]["failed"]), (&267.into(), &0.into()));
    for which in ["p50", "p99", "max"] {
        assert_eq!(run["slowdown"][which], 1.0, "{run}");
        assert_eq!(run["scheduling_ms"][which], 0.0, "{run}");
    }
    // The plan is that of `fanfare load`.
    let planned = fanfare(NOWHERE, &["load", "--dry-run", "-o", "json", "--trace", &trace]).await;
    assert_eq!(report["plan"], serde_json::from_str::<Value>(&planned.stdout).unwrap());
}

#[tokio::test]
async fn a_queue_is_as_long_as_it_is_by_hand() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // One sandbox, 20 requests at 100 ms, each of 250 ms: every one waits 150 ms longer than the one before.
    let plan = plan(dir.path(), 1, 20, 100, 250);
    let rest = ["--plan", &plan, "--nodes", "1", "--out", out.to_str().unwrap()];
    let report = simulated(&[&AT_ONCE[..], &ONE_EACH, &rest].concat()).await;
    let expected: Vec<String> = (0..20).map(|n| (250_000 + 150_000 * n).to_string()).collect();
    assert_eq!(column(&out, "responseTime"), expected);
    let waited: Vec<String> = (0..20).map(|n| (150_000 * n).to_string()).collect();
    assert_eq!(column(&out, "queueTime"), waited);
    let run = &report["runs"][0];
    assert_eq!((&run["sandboxes_ordered"], &run["node_sandboxes_peak"]), (&1.into(), &1.into()));
    // With two, which is one too few yet, half of that; with three, the room that it takes.
    let two = simulated(&[&AT_ONCE[..], &ONE_EACH, &["--plan", &plan, "--nodes", "2,3"]].concat()).await;
    assert_eq!(two["runs"][0]["response_ms"]["max"], 250.0 + 9.0 * 50.0, "{two}");
    assert_eq!(two["runs"][1]["response_ms"]["max"], 250.0, "{two}");
}

#[tokio::test]
async fn a_cold_start_takes_as_long_as_it_is_said_to() {
    let dir = tempfile::tempdir().unwrap();
    let plan = rare(dir.path());
    let delays = ["--create-delay", "30ms", "--message-delay", "1ms", "--plan", &plan];
    let run = &simulated(&delays).await["runs"][0];
    assert_eq!((&run["counts"]["cold"], &run["counts"]["ok"]), (&4.into(), &4.into()));
    let cold = &run["scheduling_cold_ms"];
    // Demand, order, readiness, grant, to the sandbox and back: six messages.
    assert_eq!((&cold["p50"], &cold["max"]), (&36.0.into(), &36.0.into()), "{run}");
    // A sandbox that stays serves the others: there and back.
    let kept = simulated(&[&delays[..], &["--stable-window", "10m"]].concat()).await;
    let kept = &kept["runs"][0];
    assert_eq!(
        (&kept["counts"]["cold"], &kept["scheduling_warm_ms"]["max"]),
        (&1.into(), &2.0.into()),
        "{kept}"
    );
}

#[tokio::test]
async fn as_dirigent_only_the_first_sandbox_is_there_before_the_autoscalers_tick() {
    let dir = tempfile::tempdir().unwrap();
    // 20 requests within 20 ms, each of which takes longer than it takes to decide.
    let plan = plan(dir.path(), 1, 20, 1, 30_000);
    let load = ["--plan", &plan, "--nodes", "4", "--message-delay", "0ms"];
    for (profile, waits_ms, placement) in
        [("fanfare", 20.0..21.0, "kubernetes"), ("dirigent", 1_900.0..6_100.0, "random")]
    {
        let report = simulated(&[&load[..], &["--profile", profile]].concat()).await;
        let run = &report["runs"][0];
        assert_eq!((&run["counts"]["ok"], &run["sandboxes_ordered"]), (&20.into(), &20.into()), "{run}");
        assert!(waits_ms.contains(&run["scheduling_ms"]["max"].as_f64().unwrap()), "{profile}: {run}");
        assert_eq!(report["cluster"]["placement"], placement);
    }
    let asked =
        simulated(&[&load[..], &["--profile", "dirigent", "--placement", "round-robin"]].concat()).await;
    assert_eq!(asked["cluster"]["placement"], "round-robin");
}

#[tokio::test]
async fn by_cpu_there_are_as_many_as_it_takes_to_be_below_the_target() {
    let dir = tempfile::tempdir().unwrap();
    // 10 executions at once, all of which one sandbox would take.
    let plan = plan(dir.path(), 1, 3_000, 100, 1_000);
    let load = ["--plan", &plan, "--nodes", "10", "--concurrency", "100", "--cpu-request", "1"];
    // What CPU use and target call for, within the policy's tolerance; up to twice as many, for use was measured while
    // there were fewer.
    let cases: [(&[&str], u64); 4] = [
        (&[], 1),
        // 10 CPUs at 0.8 of one each, 10 tenths of a CPU likewise, and 10 CPUs at half of one each.
        (&["--policy", "hpa"], 12),
        (&["--policy", "hpa", "--execution-cpu", "0.1"], 2),
        (&["--policy", "hpa", "--target-utilization", "0.5"], 19),
    ];
    for (policy, least) in cases {
        let report = simulated(&[&load[..], policy].concat()).await;
        let run = &report["runs"][0];
        assert_eq!(run["counts"]["ok"], 3_000, "{policy:?}: {run}");
        let made = run["sandboxes_ordered"].as_u64().unwrap();
        let most = if policy.is_empty() { least } else { 2 * least };
        assert!((least..=most).contains(&made), "{policy:?}: {made}, {run}");
    }
    let foreign = sim(&[&load[..], &["--policy", "hpa", "--stable-window", "30s"]].concat()).await;
    assert!(foreign.code == 2 && foreign.stderr.contains("--stable-window"), "{foreign:?}");
}

#[tokio::test]
async fn fewer_nodes_are_no_quicker_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // 20 executions at once on average.
    let plan = plan(dir.path(), 5, 3_000, 50, 1_000);
    let report = simulated(&[&ONE_EACH[..], &["--plan", &plan, "--nodes", "40,4,1,12,20"]].concat()).await;
    let runs = report["runs"].as_array().unwrap();
    let nodes: Vec<u64> = runs.iter().map(|run| run["nodes"].as_u64().unwrap()).collect();
    assert_eq!(nodes, [1, 4, 12, 20, 40]);
    for run in runs {
        let count = |name: &str| run["counts"][name].as_u64().unwrap();
        assert_eq!(count("ok") + count("failed"), 3_000, "{run}");
        assert!(run["node_sandboxes_peak"].as_u64().unwrap() <= 1, "{run}");
    }
    let failed: Vec<u64> = runs.iter().map(|run| run["counts"]["failed"].as_u64().unwrap()).collect();
    assert!(failed.is_sorted_by(|fewer, more| fewer >= more) && failed[0] > 1_000, "{failed:?}");
    // Where all are answered, none is left out of the slowdown.
    let answered = runs.iter().filter(|run| run["counts"]["failed"] == 0);
    let slowdowns: Vec<f64> = answered.map(|run| run["slowdown"]["p50"].as_f64().unwrap()).collect();
    assert!(slowdowns.len() >= 3 && slowdowns.is_sorted_by(|fewer, more| fewer >= more), "{slowdowns:?}");
    assert!(slowdowns[0] > 2.0 && *slowdowns.last().unwrap() < 1.1, "{slowdowns:?}");
}

#[tokio::test]
async fn the_fewest_nodes_are_those_below_which_it_is_too_slow() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), 5, 3_000, 50, 1_000);
    let load = [&ONE_EACH[..], &["--plan", &plan]].concat();
    let found = simulated(&[&load[..], &["--until-slowdown", "1.5"]].concat()).await;
    let nodes = found["fewest_nodes"].as_u64().unwrap();
    assert!((15..=30).contains(&nodes), "{found}");
    let beside = format!("{},{nodes}", nodes - 1);
    let beside = simulated(&[&load[..], &["--nodes", &beside]].concat()).await;
    let slowdown = |index: usize| beside["runs"][index]["slowdown"]["p99"].as_f64().unwrap();
    assert!(slowdown(0) > 1.5 && slowdown(1) <= 1.5, "{beside}");
    let text = sim(&[&load[..], &["--until-slowdown", "1.5"]].concat()).await;
    let last = text.stdout.lines().last().unwrap();
    assert_eq!(
        last,
        format!("{nodes} nodes: nothing fails, and slowdown is at most 1.5 for 99 of 100 functions")
    );
    // Every start is cold, and takes ten times as long as its execution, however many nodes there are.
    let rare = rare(dir.path());
    let never = sim(&["--plan", &rare, "--create-delay", "10s", "--until-slowdown", "1.5"]).await;
    assert_eq!(never.code, 1, "{never:?}");
    let last = never.stdout.lines().last().unwrap();
    assert!(
        last.starts_with("no number of nodes gives") && last.contains("on half of them no more"),
        "{last}"
    );
}

#[tokio::test]
async fn the_same_command_prints_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(dir.path());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [first, again, copy] = ["first", "again", "copy"].map(file);
    let cluster = ["--nodes", "1,3", "--cpu-request", "2", "--placement", "random", "--jitter", "9ms"];
    let with = |what: &[&'static str], out: &str| {
        let args =
            [what.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>(), vec!["--out".into(), out.into()]];
        args.concat()
    };
    let mut outputs = Vec::new();
    for (what, path, out) in [("--trace", &trace, &first), ("--trace", &trace, &again)] {
        let mut args = with(&cluster, out);
        args.extend([what.to_owned(), path.clone(), "-o".to_owned(), "wide".to_owned()]);
        let run = sim(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert_eq!(run.code, 0, "{run:?}");
        outputs.push(run.stdout);
    }
    // Its plan, replayed.
    let plan = format!("{first}/plan.csv");
    let replayed = sim(&[&cluster[..], &["--plan", &plan, "--out", &copy, "-o", "wide"]].concat()).await;
    outputs.push(replayed.stdout);
    assert!(outputs[0] == outputs[1] && outputs[0] == outputs[2], "{outputs:#?}");
    let read = |directory: &str, name: &str| std::fs::read(Path::new(directory).join(name)).unwrap();
    for name in [
        "summary.json",
        "plan.csv",
        "nodes-1/experiment_duration_30.csv",
        "nodes-3/experiment_duration_30.csv",
    ] {
        assert!(
            read(&first, name) == read(&again, name) && read(&first, name) == read(&copy, name),
            "{name}"
        );
    }
    let other = sim(&[&cluster[..], &["--plan", &plan, "--seed", "7", "-o", "wide"]].concat()).await;
    assert!(other.code == 0 && other.stdout != outputs[0], "{other:?}");
}

#[tokio::test]
async fn what_is_wrong_is_named_before_anything_is_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(dir.path());
    let full = dir.path().to_str().unwrap();
    let many = (1..=101).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let cases: [(&[&str], &str); 11] = [
        (&[], "--trace"),
        (&["--trace", &trace, "--rate", "1", "--duration", "1s"], "cannot be used with"),
        (&["--trace", "/nowhere"], "cannot read /nowhere/invocations.csv"),
        (&["--trace", &trace, "--from", "30"], "the trace has 30 minutes"),
        (&["--trace", &trace, "--out", full], "is not empty"),
        (&["--trace", &trace, "--nodes", &many], "--nodes has 101 numbers; the limit is 100"),
        (&["--trace", &trace, "--cpu-request", "9"], "no node holds --cpu-request 9: each has 8 CPUs"),
        (&["--trace", &trace, "--stable-window", "1h30"], "--stable-window"),
        (&["--trace", &trace, "--tick", "0s"], "--tick"),
        (&["--trace", &trace, "--scale-down-delay", "soon"], "--scale-down-delay"),
        (&["--rate", "1", "--duration", "1s", "--execution", "2m"], "execution"),
    ];
    for (args, named) in cases {
        let refused = sim(args).await;
        assert_eq!(refused.code, 2, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(named) && refused.stdout.is_empty(), "{args:?}: {refused:?}");
    }
}

#[tokio::test]
async fn one_number_of_nodes_is_reported_as_load_is() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(dir.path());
    let run = sim(&["--trace", &trace, "--profile", "knative", "-o", "wide"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    for row in
        ["executions at once", "answered            267", "slowdown", "  cold", "sandboxes made", "FUNCTION"]
    {
        assert!(run.stdout.contains(row), "{row}: {}", run.stdout);
    }
    // How long it took is no part of the result.
    assert!(run.stderr.contains("Simulated 30 min on 10 nodes in "), "{run:?}");
    assert!(sim(&["--trace", &trace, "--quiet"]).await.stderr.is_empty());
}
