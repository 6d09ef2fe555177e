//! What bad input, bad code and too much of anything get: each its own reason, neighbours unharmed.

use std::time::Instant;

use crate::cluster::Cluster;
use crate::in_both_arrangements;

in_both_arrangements!(
    a_full_queue_and_a_passed_deadline_have_their_reasons,
    a_timeout_answers_at_the_deadline_and_frees_the_slot,
    errors_of_the_handler_and_of_its_process_are_told_apart,
    bombs_stay_inside,
    broken_code_is_refused_with_its_reason_and_last_words,
    bad_registrations_name_field_limit_and_value,
);

const NEIGHBOUR: &str = "def handler(e, c):\n    return 'fine'\n";

async fn a_full_queue_and_a_passed_deadline_have_their_reasons(cluster: Cluster) -> Cluster {
    let source = "import time\ndef handler(e, c):\n    time.sleep(2)\n    return 1\n";
    cluster.deploy_python("narrow", source, &["--max", "1", "--queue-limit", "2", "--timeout", "3s"]);
    let answers = futures_util::future::join_all((0..5).map(|_| cluster.call("narrow", "{}"))).await;
    let count = |reason| answers.iter().filter(|a| a.reason() == reason).count();
    let statuses: Vec<_> = answers.iter().map(|a| (a.status, a.reason())).collect();
    assert!(count(Some("queue-full")) >= 2, "{statuses:?}");
    assert!(count(None) >= 1, "{statuses:?}");
    assert!(count(Some("queue-timeout")) + count(Some("request-timeout")) >= 1, "{statuses:?}");
    let full = answers.iter().find(|a| a.reason() == Some("queue-full")).unwrap();
    assert!(matches!(full.status, 429 | 503) && full.header("retry-after").is_some());
    assert!(full.json()["detail"].as_str().is_some_and(|d| d.contains('2')), "{}", full.text());
    cluster
}

async fn a_timeout_answers_at_the_deadline_and_frees_the_slot(cluster: Cluster) -> Cluster {
    let source = "import time\ndef handler(e, c):\n    time.sleep(e.get('s', 0))\n    return 'done'\n";
    cluster.deploy_python("stuck", source, &["--max", "1", "--timeout", "1s"]);
    assert_eq!(cluster.call("stuck", "{}").await.text(), "done");
    let begun = Instant::now();
    let late = cluster.call("stuck", r#"{"s":30}"#).await;
    assert_eq!((late.status, late.reason()), (504, Some("request-timeout")), "{}", late.text());
    assert!(begun.elapsed().as_secs_f64() < 5.0, "{:?}", begun.elapsed());
    let begun = Instant::now();
    let next = cluster.call("stuck", "{}").await;
    assert_eq!((next.status, next.text()), (200, "done"));
    // 100 ms is the promise; ten times that is what a loaded machine is given.
    assert!(begun.elapsed().as_secs_f64() < 1.0, "the only slot was free after {:?}", begun.elapsed());
    cluster
}

async fn errors_of_the_handler_and_of_its_process_are_told_apart(cluster: Cluster) -> Cluster {
    let source = "import os, socket, signal\n\
                  def handler(e, c):\n\
                 \x20   what = e.get('do')\n\
                 \x20   if what == 'raise': raise ValueError('no such colour: mauve')\n\
                 \x20   if what == 'exit': print('going down', flush=True); os._exit(7)\n\
                 \x20   if what == 'segv': os.kill(os.getpid(), signal.SIGSEGV)\n\
                 \x20   if what == 'eat': return len([bytearray(1 << 20) for _ in range(4096)])\n\
                 \x20   return 'ok'\n";
    cluster.deploy_python("bad", source, &["--memory", "64MiB"]);
    let raised = cluster.call("bad", r#"{"do":"raise"}"#).await;
    assert_eq!((raised.status, raised.reason()), (502, Some("handler-error")));
    assert!(raised.text().contains("no such colour: mauve"), "{}", raised.text());
    let exited = cluster.call("bad", r#"{"do":"exit"}"#).await;
    assert_eq!((exited.status, exited.reason()), (502, Some("sandbox-exited")), "{}", exited.text());
    assert!(exited.text().contains("status 7"), "{}", exited.text());
    let signalled = cluster.call("bad", r#"{"do":"segv"}"#).await;
    assert_eq!((signalled.status, signalled.reason()), (502, Some("sandbox-exited")), "{}", signalled.text());
    assert!(signalled.text().contains("signal 11"), "{}", signalled.text());
    let eaten = cluster.call("bad", r#"{"do":"eat"}"#).await;
    assert_eq!((eaten.status, eaten.reason()), (502, Some("out-of-memory")), "{}", eaten.text());
    assert_eq!(cluster.call("bad", "{}").await.text(), "ok", "a dead sandbox is replaced");
    let output = cluster.cli(&["invoke", "bad", "-d", r#"{"do":"raise"}"#]);
    assert_eq!(output.status.code(), Some(1), "a function error has its own exit code");
    cluster
}

async fn bombs_stay_inside(cluster: Cluster) -> Cluster {
    let source = "import os, tempfile\n\
                  def handler(e, c):\n\
                 \x20   if e.get('do') == 'fork':\n\
                 \x20       n = 0\n\
                 \x20       try:\n\
                 \x20           while True:\n\
                 \x20               if os.fork() == 0:\n\
                 \x20                   import time; time.sleep(60); os._exit(0)\n\
                 \x20               n += 1\n\
                 \x20       except OSError as error:\n\
                 \x20           return {'forks': n, 'errno': error.errno}\n\
                 \x20   if e.get('do') == 'bomb':\n\
                 \x20       while True:\n\
                 \x20           if os.fork() == 0:\n\
                 \x20               import time; time.sleep(60); os._exit(0)\n\
                 \x20   if e.get('do') == 'threads':\n\
                 \x20       import threading\n\
                 \x20       while True: threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
                 \x20   if e.get('do') == 'fill':\n\
                 \x20       with tempfile.TemporaryFile() as f:\n\
                 \x20           while True: f.write(b'x' * (1 << 20))\n\
                 \x20   return 'ok'\n";
    cluster.deploy_python("bomb", source, &["--pids", "32", "--tmp", "8MiB"]);
    cluster.deploy_python("neighbour", NEIGHBOUR, &[]);
    let forked = cluster.call("bomb", r#"{"do":"fork"}"#).await;
    assert_eq!(forked.status, 200, "{}", forked.text());
    assert!(forked.json()["forks"].as_u64().unwrap() < 40, "{}", forked.text());
    let filled = cluster.call("bomb", r#"{"do":"fill"}"#).await;
    assert_eq!((filled.status, filled.reason()), (502, Some("no-space")), "{}", filled.text());
    assert!(filled.text().contains("No space left"), "{}", filled.text());
    for bomb in ["bomb", "threads"] {
        let name = format!("{bomb}s");
        cluster.deploy_python(&name, source, &["--pids", "32"]);
        let refused = cluster.call(&name, &format!(r#"{{"do":"{bomb}"}}"#)).await;
        assert_eq!((refused.status, refused.reason()), (502, Some("process-limit")), "{}", refused.text());
        let hint = refused.json()["hint"].as_str().unwrap_or_default().to_owned();
        assert!(hint.contains(&format!("fanfare update {name} --pids")), "{hint}");
    }
    assert_eq!(cluster.call("neighbour", "{}").await.text(), "fine");
    cluster
}

async fn broken_code_is_refused_with_its_reason_and_last_words(cluster: Cluster) -> Cluster {
    let cases = [
        ("nohandler", "x = 1\n", "handler-not-found"),
        ("syntax", "def handler(e, c:\n", "start-failed"),
        (
            "raises",
            "print('before the end', flush=True)\nraise RuntimeError('boom at import')\n",
            "start-failed",
        ),
        ("exits", "import os\nos._exit(3)\n", "start-failed"),
    ];
    for (name, source, reason) in cases {
        let file = cluster.file(&format!("{name}.py"), source);
        let output = cluster.cli(&["deploy", file.to_str().unwrap()]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{name}: {err}");
        assert!(err.contains(reason), "{name}: {err}");
        let called = cluster.call(name, "{}").await;
        assert_eq!((called.status, called.reason()), (503, Some(reason)), "{name}: {}", called.text());
        let status = cluster.status_of(name).await;
        assert!(status.to_string().contains(reason), "{name}: describe keeps the reason: {status}");
    }
    let begun = Instant::now();
    let again = cluster.call("raises", "{}").await;
    assert!(again.text().contains("boom at import"), "{}", again.text());
    assert!(begun.elapsed().as_secs_f64() < 10.0);
    cluster
}

async fn bad_registrations_name_field_limit_and_value(cluster: Cluster) -> Cluster {
    let cases = [
        (r#"{"name":"Bad Name","handler":{"kind":"fake"}}"#, "name"),
        (r#"{"name":"f","runtime":"fake","handler":{"kind":"fake"},"concurrency":5000}"#, "concurrency"),
        (r#"{"name":"f","runtime":"fake","handler":{"kind":"fake"},"colour":"red"}"#, "colour"),
        (r#"{"name":"f","runtime":"fake","handler":{"kind":"fake"},"scaling":{"max":0.5}}"#, "max"),
    ];
    for (document, field) in cases {
        let answer = cluster.api("POST", "/v1/functions", Some(document)).await;
        assert!((400..500).contains(&answer.status), "{document}: {}", answer.text());
        assert!(answer.text().contains(field), "{document}: {}", answer.text());
        assert!(answer.header("content-type").is_some_and(|t| t.starts_with("application/problem+json")));
    }
    let garbage = cluster.api("POST", "/v1/functions", Some("{not json")).await;
    assert_eq!(garbage.status, 400, "{}", garbage.text());
    cluster
}
