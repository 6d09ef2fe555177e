//! Schedules from the command line, on the whole platform.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::real::{Up, sandboxes_work};

/// Answers with what it was told of its schedule.
const CLOCK: &str = "\
def handler(event, context):
    headers = context.http['headers']
    return {'schedule': headers.get('x-fanfare-schedule'), 'at': headers.get('x-fanfare-scheduled'), 'event': event}
";
const PATIENCE: Duration = Duration::from_secs(30);

async fn json(up: &Up, args: &[&str]) -> Value {
    let run = up.run(&[args, &["-o", "json"]].concat()).await;
    assert_eq!(run.code, 0, "{args:?}: {run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// The schedule once `wanted` holds of it.
async fn until(up: &Up, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let schedule = json(up, &["schedule", "describe", name]).await;
        if wanted(&schedule) {
            return schedule;
        }
        assert!(begin.elapsed() < PATIENCE, "{schedule:#}");
    }
}

fn fired(schedule: &Value) -> &[Value] {
    schedule["fired"].as_array().unwrap()
}

async fn result(up: &Up, id: &str) -> Value {
    let run = up.run(&["async", "result", id, "--wait", "30s"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

#[tokio::test]
async fn the_command_line_sets_looks_pauses_runs_and_deletes() {
    if !sandboxes_work("the_command_line_sets_looks_pauses_runs_and_deletes").await {
        return;
    }
    let up = Up::start().await;
    up.write("clock.py", CLOCK);
    assert_eq!(up.run(&["deploy", "./clock.py"]).await.code, 0);
    let run = up.run(&["schedule", "list"]).await;
    assert!(run.code == 0 && run.stdout.is_empty() && run.stderr.contains("fanfare schedule set"), "{run:?}");
    let set = ["schedule", "set", "nightly", "clock", "--cron", "30 2 * * *", "--zone", "Europe/Zurich"];
    let run = up.run(&[&set[..], &["-d", "{\"a\": 1}", "-H", "X-A: b"]].concat()).await;
    assert!(run.code == 0 && run.stderr.contains("Created nightly"), "{run:?}");
    assert!(run.stdout.starts_with("next  ") && run.stdout.contains("T02:30:00+0"), "{run:?}");
    let run = up.run(&[&set[..], &["-d", "{\"a\": 1}", "-H", "X-A: b"]].concat()).await;
    assert!(run.code == 0 && run.stderr.contains("Unchanged nightly"), "{run:?}");
    let run = up.run(&["schedule", "list", "-o", "wide"]).await;
    assert!(run.stdout.contains("nightly  clock     30 2 * * * (Europe/Zurich)  active"), "{run:?}");

    let run = up.run(&["schedule", "run", "nightly"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    let answer = result(&up, run.stdout.trim()).await;
    assert_eq!((&answer["schedule"], &answer["event"]["a"]), (&"nightly".into(), &1.into()));
    let run = up.run(&["schedule", "describe", "nightly"]).await;
    for part in [
        "name       nightly (s1-1)",
        "when       30 2 * * *  (Europe/Zurich)",
        "call       POST /, a body of 8 B",
        "header     X-A: b",
        "NEXT (EUROPE/ZURICH)       UTC\n",
        "by hand",
        "succeeded",
    ] {
        assert!(run.stdout.contains(part), "{part}: {}", run.stdout);
    }
    assert_eq!(run.stdout.matches("T02:30:00+0").count(), 5, "{}", run.stdout);
    let run = up.run(&["schedule", "pause", "nightly"]).await;
    assert!(run.code == 0 && run.stdout == "next  none\n", "{run:?}");
    assert_eq!(json(&up, &["schedule", "describe", "nightly"]).await["state"], "paused");
    assert!(up.run(&["schedule", "resume", "nightly"]).await.stdout.contains("T02:30:00+0"));

    let cases = [
        (&["schedule", "describe", "nigthly"][..], 4, "did you mean nightly?"),
        (&["schedule", "set", "x", "clcok", "--cron", "@daily"], 4, "did you mean clock?"),
        (&["schedule", "set", "x", "clock", "--cron", "* * * *"], 2, "cannot be read"),
        (&["schedule", "set", "x", "clock", "--cron", "@daily", "--zone", "Mars"], 2, "Europe/Zurich"),
        (&["schedule", "set", "x", "clock"], 2, "--cron"),
        (&["schedule", "set", "x", "clock", "--cron", "@daily", "--in", "1s"], 2, "--in"),
        (&["schedule", "set", "x", "clock", "--at", "2020-01-01T00:00:00Z"], 2, "to come"),
        (&["schedule", "set", "x", "clock", "--in", "1h", "-H", "X-Fanfare-A: b"], 2, "platform"),
        (&["schedule", "set", "x", "clock", "--in", "1h", "--max-attempts", "101"], 2, "1 to 100"),
    ];
    for (args, code, part) in cases {
        let run = up.run(args).await;
        assert!(run.code == code && run.stderr.contains(part), "{args:?}: {run:?}");
    }
    let run = up.run(&["schedule", "delete", "nightly", "none"]).await;
    assert!(run.code == 4 && run.stderr.contains("Deleted nightly"), "{run:?}");
    for verb in ["set", "list", "describe", "pause", "resume", "run", "delete"] {
        let run = up.run(&["schedule", verb, "-h"]).await;
        assert!(run.code == 0 && run.stdout.lines().count() <= 50, "{verb}: {}", run.stdout);
    }
    up.end().await;
}

#[tokio::test]
async fn kill_9_at_any_moment_neither_loses_nor_doubles_an_occurrence() {
    if !sandboxes_work("kill_9_at_any_moment_neither_loses_nor_doubles_an_occurrence").await {
        return;
    }
    let mut up = Up::start().await;
    up.write("clock.py", CLOCK);
    assert_eq!(up.run(&["deploy", "./clock.py"]).await.code, 0);
    let set = up.run(&["schedule", "set", "ticks", "clock", "--cron", "* * * * * *"]).await;
    assert_eq!(set.code, 0, "{set:?}");
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..3 {
        let once = format!("once-{round}");
        let set = up.run(&["schedule", "set", &once, "clock", "--in", "1500ms"]).await;
        assert_eq!(set.code, 0, "{set:?}");
        let before = seen.keys().next_back().cloned().unwrap_or_default();
        let ticks = until(&up, "ticks", |s| {
            fired(s).first().is_some_and(|last| last["scheduled"].as_str().unwrap() > before.as_str())
        })
        .await;
        // Those that are seen now are still what they are said to be when all is over.
        for one in fired(&ticks) {
            let (at, id) = (one["scheduled"].as_str().unwrap(), one["invocation"].as_str());
            if let Some(id) = id {
                assert_eq!(*seen.entry(at.to_owned()).or_insert(id.to_owned()), id, "{at} has two calls");
            }
        }
        up = Up::on(up.crash().await).await;
    }
    for round in 0..3 {
        // At its time, or, where nothing ran then, up to a minute late.
        let once = until(&up, &format!("once-{round}"), |s| !fired(s).is_empty()).await;
        assert_eq!((fired(&once).len(), &fired(&once)[0]["outcome"]), (1, &"accepted".into()), "{once:#}");
        let answer = result(&up, fired(&once)[0]["invocation"].as_str().unwrap()).await;
        assert_eq!(answer["at"], fired(&once)[0]["scheduled"]);
    }
    assert_eq!(up.run(&["schedule", "pause", "ticks"]).await.code, 0);
    until(&up, "ticks", |s| s["firing"].is_null()).await;
    let calls = json(&up, &["async", "list", "--limit", "1000"]).await;
    let mut occurrences = BTreeSet::new();
    let ids: Vec<_> =
        calls["invocations"].as_array().unwrap().iter().map(|c| c["id"].as_str().unwrap()).collect();
    for id in &ids {
        let answer = result(&up, id).await;
        let occurrence = (answer["schedule"].to_string(), answer["at"].to_string());
        assert!(occurrences.insert(occurrence.clone()), "{occurrence:?} was called twice");
    }
    assert!(seen.len() >= 3 && seen.values().all(|id| ids.contains(&id.as_str())), "{seen:?} in {ids:?}");
    up.end().await;
}
