//! Webhooks from the command line, with the commands that it prints.

use serde_json::Value;
use tokio::process::Command;

use crate::real::{Up, sandboxes_work};
use crate::run::fanfare_with_input;

const HOOK: &str = "\
def handler(event, context):
    return {'webhook': context.http['headers'].get('x-fanfare-webhook'), 'event': event}
";
/// As Standard Webhooks has it; the other schemes take it as it is.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn the_commands_that_are_printed_sign_and_are_believed() {
    let test = "the_commands_that_are_printed_sign_and_are_believed";
    if !sandboxes_work(test).await {
        return;
    }
    if !Command::new("python3").arg("-V").output().await.is_ok_and(|done| done.status.success()) {
        return eprintln!("SKIPPED {test}: this machine lacks python3, which the printed commands sign with");
    }
    let up = Up::start().await;
    up.write("hook.py", HOOK);
    assert_eq!(up.run(&["deploy", "./hook.py"]).await.code, 0);
    let run = up.run(&["webhook", "set", "gh", "hook", "--verify", "github", "--secret", "key"]).await;
    assert!(run.code == 4 && run.stderr.contains("no secret"), "{run:?}");
    let run = fanfare_with_input(up.api(), &["secret", "set", "key"], SECRET.as_bytes()).await;
    assert_eq!(run.code, 0, "{run:?}");
    for scheme in ["github", "stripe", "standard", "token"] {
        let set = ["webhook", "set", scheme, "hook", "--verify", scheme, "--secret", "key", "--wait"];
        let run = up.run(&set).await;
        assert_eq!(
            (run.code, run.stdout),
            (0, format!("{}/webhook/{scheme}\n", up.functions)),
            "{}",
            run.stderr
        );
        let described = up.run(&["webhook", "describe", scheme]).await;
        assert!(described.code == 0 && !described.stdout.contains(SECRET), "{described:?}");
        let (_, command) = described.stdout.split_once("$SECRET:\n").expect("a command");
        // What a shell does by itself is no command line; what others are started with is.
        for word in ["openssl", "\"Authorization"] {
            assert!(!command.contains(word), "{command}");
        }
        for (secret, believed) in [(SECRET, true), ("whsec_AAAA", false)] {
            let mut shell = Command::new("sh");
            let done = shell.args(["-c", command]).env("SECRET", secret).output().await.unwrap();
            let answer: Value =
                serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
            match believed {
                true => {
                    assert_eq!(answer["webhook"], scheme, "{command}: {answer}");
                    assert_eq!(answer["event"]["name"], "Ada");
                }
                false => assert_eq!(answer["reason"], "webhook-unverified", "{command}: {answer}"),
            }
        }
    }
    let run = up.run(&["webhook", "list"]).await;
    assert!(run.stdout.contains("github    hook      github    key     the answer  ready"), "{}", run.stdout);
    let run = up.run(&["webhook", "describe", "githbu"]).await;
    assert!(run.code == 4 && run.stderr.contains("did you mean github?"), "{run:?}");
    let run = up.run(&["webhook", "delete", "github", "none"]).await;
    assert!(run.code == 4 && run.stderr.contains("Deleted github"), "{run:?}");
    for verb in ["set", "list", "describe", "delete"] {
        let run = up.run(&["webhook", verb, "-h"]).await;
        assert!(run.code == 0 && run.stdout.lines().count() <= 50, "{verb}: {}", run.stdout);
    }
    up.end().await;
}
