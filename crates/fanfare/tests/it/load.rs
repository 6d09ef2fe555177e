//! `fanfare load` without a platform: what it plans, and what it refuses.

use std::path::Path;

use serde_json::Value;

use crate::run::{Run, fanfare};

const INVOCATIONS: &str = include_str!("../../../fanfare-trace/testdata/azure/invocations.csv");
const DURATIONS: &str = include_str!("../../../fanfare-trace/testdata/azure/durations.csv");
const MEMORY: &str = include_str!("../../../fanfare-trace/testdata/azure/memory.csv");

/// Nobody is there.
const NOWHERE: &str = "http://127.0.0.1:1";

/// Writes a small trace there.
pub(crate) fn trace(directory: &Path) -> String {
    for (name, text) in
        [("invocations.csv", INVOCATIONS), ("durations.csv", DURATIONS), ("memory.csv", MEMORY)]
    {
        std::fs::write(directory.join(name), text).unwrap();
    }
    directory.to_str().unwrap().to_owned()
}

async fn planned(args: &[&str]) -> Run {
    fanfare(NOWHERE, &[&["load", "--dry-run", "-o", "json"], args].concat()).await
}

#[tokio::test]
async fn a_plan_is_the_same_each_time_and_through_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(dir.path());
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [first, again, copy, other] = ["first", "again", "copy", "other"].map(file);
    let cut = ["--trace", &trace, "--from", "5", "--minutes", "20", "--scale", "2.5", "--warm-up", "2"];
    let made = planned(&[&cut[..], &["--write-plan", &first]].concat()).await;
    assert_eq!(made.code, 0, "{made:?}");
    let report: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&report["span_s"], &report["warm_up_s"]), (&1_200.0.into(), &120.0.into()));
    assert!(report["source"].as_str().unwrap().contains("from 485 on"), "{report}");
    for (args, path) in [(&cut[..], &again), (&["--plan", &first], &copy)] {
        assert_eq!(planned(&[args, &["--write-plan", path]].concat()).await.stdout, made.stdout);
    }
    let read = |path: &str| std::fs::read(path).unwrap();
    assert!(read(&first) == read(&again) && read(&first) == read(&copy));
    let seeded = planned(&[&cut[..], &["--seed", "43", "--write-plan", &other]].concat()).await;
    assert!(seeded.code == 0 && read(&first) != read(&other));
    // Without --scale the counts are the trace's.
    let whole = planned(&["--trace", &trace]).await;
    let whole: Value = serde_json::from_str(&whole.stdout).unwrap();
    assert_eq!((&whole["invocations"], &whole["functions"]), (&267.into(), &6.into()));
}

#[tokio::test]
async fn what_is_wrong_is_named_before_anything_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let trace = trace(dir.path());
    let plan = dir.path().join("plan.csv");
    std::fs::write(&plan, "fanfare-plan,1\nseed,x\n").unwrap();
    let plan = plan.to_str().unwrap();
    let full = dir.path().to_str().unwrap();
    let cases: [(&[&str], &str); 14] = [
        (&[], "--trace"),
        (&["--trace", &trace, "--plan", plan], "cannot be used with"),
        (&["--rate", "1"], "--duration"),
        (&["--rate", "0", "--duration", "1s"], "0.0001 to 100000"),
        (&["--rate", "1", "--duration", "1s", "--minutes", "3"], "cannot be used with"),
        (&["--rate", "100000", "--duration", "1h"], "more than 5000000 invocations"),
        (&["--trace", "/nowhere"], "docs/load.md says where to get one"),
        (&["--trace", &trace, "--from", "30"], "the trace has 30 minutes; 1 from 30 on are not among them"),
        (&["--trace", &trace, "--warm-up", "31"], "31 minutes of warm-up"),
        (&["--trace", &trace, "--scale", "-1"], "0.001 to 1000"),
        (&["--trace", &trace, "--from", "0", "--minutes", "1", "--scale", "0.001"], "not one invocation"),
        (&["--plan", plan], "plan.csv, line 2, seed: \"x\" is no whole number"),
        (&["--trace", &trace, "--prefix", "-"], "--prefix"),
        (&["--trace", &trace, "--out", full], "is not empty"),
    ];
    for (args, named) in cases {
        let refused = fanfare(NOWHERE, &[&["load"], args].concat()).await;
        assert_eq!(refused.code, 2, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(named), "{args:?}: {refused:?}");
    }
    let broken = INVOCATIONS.replacen(",0,1,0", ",0,x,0", 1);
    std::fs::write(dir.path().join("invocations.csv"), broken).unwrap();
    let refused = planned(&["--trace", &trace]).await;
    assert!(
        refused.code == 2 && refused.stderr.contains(r#"invocations.csv, line 2, 481: \"x\""#),
        "{refused:?}"
    );
    // The platform is missed only when everything else is right.
    let missing = fanfare(NOWHERE, &["load", "--rate", "1", "--duration", "1s"]).await;
    assert_eq!(missing.code, 3, "{missing:?}");
}
