//! `fanfare load` against the platform: every invocation of a plan is made, counted and told, and nothing is left.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::in_both_arrangements;

const INVOCATIONS: &str = include_str!("../../../fanfare-trace/testdata/azure/invocations.csv");
const DURATIONS: &str = include_str!("../../../fanfare-trace/testdata/azure/durations.csv");
const MEMORY: &str = include_str!("../../../fanfare-trace/testdata/azure/memory.csv");
const DIRIGENT: &str = include_str!("../../../fanfare-trace/testdata/azure/dirigent.csv");
/// These tests say nothing of how late a loaded machine is.
const ANY_LATENESS: [&str; 2] = ["--lateness-max", "1h"];

in_both_arrangements!(
    a_trace_is_replayed_and_its_plan_again,
    failures_are_counted_by_outcome_and_reason,
    a_run_whose_requests_are_late_is_unreliable,
);

fn read(cluster: &Cluster, path: &str) -> String {
    std::fs::read_to_string(cluster.path(path)).unwrap()
}

async fn a_trace_is_replayed_and_its_plan_again(cluster: Cluster) -> Cluster {
    let files = [
        ("invocations.csv", INVOCATIONS),
        ("durations.csv", DURATIONS),
        ("memory.csv", MEMORY),
        ("dirigent.csv", DIRIGENT),
    ];
    for (name, text) in files {
        cluster.file(&format!("trace/{name}"), text);
    }
    let cut = ["--minutes", "4", "--granularity", "second", "--duration-scale", "0.01", "--warm-up", "1"];
    let first = ["load", "--trace", "trace", "--out", "first", "-o", "json"];
    let report = cluster.cli_ok(&[&first[..], &cut, &ANY_LATENESS].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    let planned = report["plan"]["invocations"].as_u64().unwrap();
    assert!(planned > 20, "{report}");
    let counts = &report["counts"];
    assert_eq!((&counts["sent"], &counts["ok"]), (&planned.into(), &planned.into()), "{report}");
    assert!(report["reliable"] == true && report["complete"] == true, "{report}");
    // Everything began at zero: who answered first was made for it.
    let functions = report["plan"]["functions"].as_u64().unwrap();
    let seen = report["sandboxes_seen"].as_u64().unwrap();
    let ordered = report["sandboxes_ordered"].as_u64().unwrap();
    assert!(functions <= seen && seen <= ordered, "{report}");
    for latency in ["response_ms", "service_ms", "scheduling_ms", "slowdown"] {
        let (p50, p99) = (report[latency]["p50"].as_f64().unwrap(), report[latency]["p99"].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p99, "{latency}: {report}");
    }
    assert!(report["cold_stages_ms"]["create"]["p99"].as_f64().unwrap() > 0.0, "{report}");
    let mut roles: Vec<&str> =
        report["cpu"].as_array().unwrap().iter().map(|process| process["role"].as_str().unwrap()).collect();
    roles.sort_unstable();
    // Each once: sandboxes are none of them.
    let expected: &[&str] = match cluster.processes.len() {
        1 => &["launcher", "up"],
        _ => &["control-plane", "data-plane", "launcher", "node"],
    };
    assert_eq!(roles, expected, "{report}");

    let rows = read(&cluster, "first/experiment_duration_1.csv");
    assert_eq!(rows.lines().count() as u64, planned + 1);
    let columns = "phase,instance,invocationID,startTime,requestedDuration,grpcConnEstablish,responseTime,\
                   actualDuration,connectionTimeout,functionTimeout,actualMemoryUsage,memoryAllocationTimeout,";
    assert!(rows.starts_with(columns), "{rows}");
    let begins = |phase: &str| rows.lines().filter(|row| row.starts_with(phase)).count() as u64;
    assert!(begins("1,s") > 0 && begins("2,s") > 0 && begins("1,s") + begins("2,s") == planned, "{rows}");
    assert_eq!(serde_json::from_str::<Value>(&read(&cluster, "first/summary.json")).unwrap(), report);

    let second = ["load", "--plan", "first/plan.csv", "--out", "second", "--prefix", "again", "-o", "json"];
    let again = cluster.cli_ok(&[&second[..], &ANY_LATENESS].concat());
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(again["plan"], report["plan"]);
    assert_eq!(again["counts"]["ok"], planned);
    assert_eq!(read(&cluster, "first/plan.csv"), read(&cluster, "second/plan.csv"));
    // Nothing is left of either.
    assert_eq!(cluster.cli_ok(&["list", "-o", "name"]), "");
    cluster
}

async fn failures_are_counted_by_outcome_and_reason(cluster: Cluster) -> Cluster {
    cluster.deploy_python("boom", "def handler(event, context):\n    raise ValueError('no')\n", &[]);
    let load = ["load", "--rate", "20", "--duration", "1s", "--function", "boom", "-o", "json"];
    let output = cluster.cli_later(&[&load[..], &ANY_LATENESS].concat()).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = &report["counts"];
    assert_eq!((&counts["sent"], &counts["ok"], &counts["failed"]), (&20.into(), &0.into(), &20.into()));
    assert_eq!(counts["outcomes"], serde_json::json!({ "function-error": 20 }));
    assert_eq!(counts["reasons"], serde_json::json!({ "handler-error": 20 }));
    // Failures are in no latency.
    assert!(report["reliable"] == true && report["response_ms"].is_null(), "{report}");
    // It was there before.
    assert_eq!(cluster.cli_ok(&["list", "-o", "name"]), "boom\n");
    let missing = ["load", "--rate", "1", "--duration", "1s", "--function", "bom"];
    let missing = cluster.cli(&missing);
    let told = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(4) && told.contains("did you mean boom?"), "{told}");
    cluster
}

async fn a_run_whose_requests_are_late_is_unreliable(cluster: Cluster) -> Cluster {
    // With one connection each waits for the one before it: the generator cannot keep its times, and says so.
    let load = ["load", "--rate", "10", "--duration", "1s", "--execution", "300ms", "--connections", "1"];
    let output = cluster.cli_later(&[&load[..], &["-o", "json"]].concat()).await;
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // None was left out.
    assert_eq!((&report["counts"]["ok"], &report["reliable"]), (&10.into(), &false.into()), "{report}");
    assert!(report["lateness"]["max_us"].as_u64().unwrap() >= 9 * 200_000, "{report}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("this run is unreliable: 99 of 100 requests were sent up to"), "{told}");
    // What a client waited counts from when its request was due.
    let (response, service) = (&report["response_ms"], &report["service_ms"]);
    let of = |spread: &Value| spread["p50"].as_f64().unwrap();
    assert!(of(response) >= of(service) + 500.0, "{report}");
    cluster
}
