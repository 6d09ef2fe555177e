//! Why commands fail, for programs.

use serde_json::{Value, json};

use crate::double::Double;
use crate::run::fanfare;

/// The documents that a command's standard error ends with, beside other lines.
fn documents(stderr: &str) -> Vec<Value> {
    stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[tokio::test]
async fn failures_are_documents_where_results_are() {
    let double = Double::start().await.with_function("hello");
    let nowhere = "http://127.0.0.1:1";
    let code = std::env::temp_dir().join("fanfare-no-such-file.py");
    let code = code.to_str().unwrap();
    let cases: Vec<(&str, Vec<&str>, Value)> = vec![
        (
            &double.api,
            vec!["describe", "nope"],
            json!({ "reason": "function-not-found", "exit_code": 4, "type": "urn:fanfare:reason:function-not-found" }),
        ),
        (
            nowhere,
            vec!["list"],
            json!({ "reason": "platform", "exit_code": 3, "type": "urn:fanfare:reason:platform" }),
        ),
        (&double.api, vec!["deploy", code], json!({ "exit_code": 2 })),
        (
            &double.api,
            vec!["update", "hello", "--memory", "1"],
            json!({ "reason": "invalid-field", "exit_code": 2, "value": "1 B" }),
        ),
        (
            &double.api,
            vec!["list", "--nope"],
            json!({ "reason": "usage", "exit_code": 2, "field": "--nope" }),
        ),
        (
            &double.api,
            vec!["logs", "hello", "--tail", "many"],
            json!({ "reason": "usage", "exit_code": 2, "value": "many" }),
        ),
        (&double.api, vec!["decribe", "hello"], json!({ "reason": "usage", "exit_code": 2, "value": null })),
    ];
    for output in [&["-o", "json"][..], &["--output=yaml"]] {
        for (api, args, expected) in &cases {
            let args = [args.as_slice(), output].concat();
            let run = fanfare(api, &args).await;
            let found = documents(&run.stderr);
            assert_eq!(found.len(), 1, "{args:?}: {run:?}");
            let (last, found) = (run.stderr.lines().last().unwrap(), &found[0]);
            assert_eq!(serde_json::from_str::<Value>(last).unwrap(), *found, "the last line");
            assert_eq!(run.stdout, "", "{args:?}");
            assert_eq!(found["exit_code"], run.code, "{args:?}: {found}");
            for (field, value) in expected.as_object().unwrap() {
                assert_eq!(&found[field], value, "{args:?}: {found}");
            }
            for field in ["type", "title", "detail", "reason", "hint"] {
                assert!(found[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {found}");
            }
            assert!(!last.contains('\u{1b}'), "{last}");
        }
    }
    // For people it is text, as ever.
    let run = fanfare(&double.api, &["describe", "nope"]).await;
    assert!(run.stderr.starts_with("error: ") && documents(&run.stderr).is_empty(), "{run:?}");
}

#[tokio::test]
async fn each_thing_that_could_not_be_done_is_a_document() {
    let double = Double::start().await.with_function("hello");
    let run = fanfare(&double.api, &["delete", "no", "hello", "nor", "-o", "json"]).await;
    let reasons: Vec<_> = documents(&run.stderr).iter().map(|found| found["reason"].clone()).collect();
    assert_eq!((run.code, reasons), (4, vec![json!("function-not-found"); 2]), "{}", run.stderr);
    assert_eq!(serde_json::from_str::<Value>(&run.stdout).unwrap(), json!({ "deleted": ["hello"] }));
}

#[tokio::test]
async fn reports_have_no_names_and_say_what_they_are_printed_as() {
    let double = Double::start().await;
    for verb in ["doctor", "demo"] {
        for output in ["name", "url"] {
            let run = fanfare(&double.api, &[verb, "-o", output]).await;
            assert_eq!(run.code, 2, "{run:?}");
            assert!(run.stderr.contains("[possible values: text, wide, json, yaml]"), "{run:?}");
        }
    }
}
