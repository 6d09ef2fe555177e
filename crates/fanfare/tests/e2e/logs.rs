//! What functions wrote: by request, by sandbox, by age, and on and on.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::cluster::{Arrangement, Cluster, PATIENCE, root};
use crate::in_both_arrangements;

in_both_arrangements!(
    lines_of_one_request_sandbox_or_time_are_found,
    a_million_lines_before_an_exit_are_counted_where_they_are_dropped,
);

/// Lines of different requests are told apart by when they were written, to 20 ms.
const TALKS: &str = "import time\n\
                     def handler(e, c):\n\
                    \x20   time.sleep(0.06)\n\
                    \x20   print('said', e['word'], flush=True)\n\
                    \x20   time.sleep(0.06)\n\
                    \x20   return e['word']\n";

async fn lines_of_one_request_sandbox_or_time_are_found(cluster: Cluster) -> Cluster {
    cluster.deploy_python("talks", TALKS, &["--max", "1"]);
    let mut answers = Vec::new();
    for word in ["one", "two", "three"] {
        answers.push(cluster.call("talks", &format!(r#"{{"word":"{word}"}}"#)).await);
    }
    let id = answers[1].header("x-request-id").unwrap();
    let text = cluster.cli_ok(&["logs", "--request", id]);
    let said: Vec<_> = text.lines().filter(|line| line.starts_with("said")).collect();
    assert_eq!(said, ["said two"], "{text}");
    assert!(text.contains("[fanfare] what sandbox s"), "{text}");

    let explained = cluster.api("GET", &format!("/v1/requests/{id}"), None).await.json();
    let sandbox = explained["requests"][0]["slot"]["sandbox"].as_str().unwrap().to_owned();
    let of = cluster.cli_ok(&["logs", "talks", "--instance", &sandbox, "--since", "1h"]);
    assert!(["one", "two", "three"].iter().all(|word| of.contains(&format!("said {word}"))), "{of}");
    assert!(!cluster.cli_ok(&["logs", "talks", "--sandbox", "s99"]).contains("said"));
    assert!(!cluster.cli_ok(&["logs", "talks", "--since", "1ms"]).contains("said one"));

    let nobody = cluster.call("nobody", "{}").await;
    let output = cluster.cli(&["logs", "--request", nobody.header("x-request-id").unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let wrong = cluster.api("GET", "/v1/functions/talks/logs?sandbox=7", None).await;
    assert_eq!((wrong.status, wrong.reason()), (422, Some("invalid-field")), "{}", wrong.text());
    cluster
}

async fn a_million_lines_before_an_exit_are_counted_where_they_are_dropped(cluster: Cluster) -> Cluster {
    let source = "import os, sys\n\
                  def handler(e, c):\n\
                 \x20   sys.stdout.write(''.join('noise %d\\n' % n for n in range(1_000_000)))\n\
                 \x20   sys.stdout.write('last words')\n\
                 \x20   sys.stdout.flush()\n\
                 \x20   os._exit(3)\n";
    cluster.deploy_python("noisy", source, &["--memory", "256MiB"]);
    let answer = cluster.call("noisy", "{}").await;
    assert_eq!((answer.status, answer.reason()), (502, Some("sandbox-exited")), "{}", answer.text());
    assert!(answer.json()["log_tail"].as_str().unwrap().ends_with("last words"), "{}", answer.text());
    let text = cluster.cli_ok(&["logs", "noisy", "--tail", "10000"]);
    assert!(text.contains("noise 999999") && text.contains("last words"), "the end is kept");
    assert!(text.contains("lines were dropped here"), "{}", &text[text.len().saturating_sub(2_000)..]);
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_misses_nothing_and_repeats_nothing_over_a_restart_of_the_node() {
    if !root() {
        return;
    }
    let mut cluster = Cluster::start(Arrangement::Apart { data_planes: 1 }).await;
    cluster.deploy_python("talks", TALKS, &["--max", "1"]);
    let mut follower = Command::new(env!("CARGO_BIN_EXE_fanfare"))
        .args(["logs", "-f", "talks"])
        .env("FANFARE_API", &cluster.api)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let (tell, mut heard) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let said = lines.map_while(Result::ok).filter(|line| line.starts_with("said"));
        said.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
    });
    let mut next = async || tokio::time::timeout(PATIENCE, heard.recv()).await.expect("a line").unwrap();
    for word in ["a0", "a1", "a2"] {
        cluster.call("talks", &format!(r#"{{"word":"{word}"}}"#)).await;
        assert_eq!(next().await, format!("said {word}"));
    }
    let at = cluster.processes.iter().position(|process| process.role == "node").unwrap();
    cluster.processes[at].child.kill().unwrap();
    cluster.processes[at].child.wait().unwrap();
    cluster.processes.remove(at);
    cluster.spawn_node(&[]);
    for word in ["b0", "b1", "b2"] {
        // What the old node had in hand may fail; what was said for it is said all the same.
        cluster
            .until("the new node serves", async || {
                cluster.call("talks", &format!(r#"{{"word":"{word}"}}"#)).await.status == 200
            })
            .await;
        assert_eq!(next().await, format!("said {word}"), "nothing twice, and no gap");
    }
    let _ = follower.kill();
    let _ = follower.wait();
    cluster.shut_down();
}
