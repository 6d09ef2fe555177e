//! What settings do not do, though they read as if they did.

use fanfare_api::{FunctionDocument, HandlerDocument};

/// Handler processes that are still cheaper than sandboxes of their own.
const PROCESSES_ADVISED_MAX: u32 = 32;

/// What to do about a Python handler whose sandbox is given more requests than it can run: a Python process runs one at
/// a time, and the others wait in it.
pub(crate) fn one_at_a_time(document: &FunctionDocument) -> Option<String> {
    let HandlerDocument::Python { .. } = document.handler else { return None };
    // Concurrency that a profile implies is none that was asked for.
    let concurrency = document.concurrency?;
    let processes = document.handler_processes.unwrap_or(1);
    if concurrency <= processes {
        return None;
    }
    let name = &document.name;
    let runs = match processes {
        1 => "one request at a time".to_owned(),
        processes => format!("{processes} requests at a time, one in each process,"),
    };
    let apart = format!("--concurrency {processes} starts more sandboxes instead");
    let together = match concurrency {
        ..=PROCESSES_ADVISED_MAX => {
            format!("`fanfare update {name} --handler-processes {concurrency}` runs them at once, {apart}")
        }
        _ => format!("`fanfare update {name}` with {apart}"),
    };
    Some(format!(
        "a sandbox of {name} is given {concurrency} requests, and Python runs {runs} while the others wait: {together}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_that_would_queue_in_its_sandbox_is_told_the_flag() {
        let python = HandlerDocument::Python { file: "f.py".into(), handler: "handler".into() };
        let node = HandlerDocument::Node { file: "f.js".into(), handler: "handler".into() };
        let cases = [
            (&python, Some(10), None, Some("`fanfare update f --handler-processes 10`")),
            (&python, Some(10), Some(5), Some("runs 5 requests at a time")),
            (&python, Some(100), None, Some("with --concurrency 1")),
            (&python, Some(10), Some(10), None),
            (&python, Some(1), None, None),
            (&python, None, None, None),
            (&node, Some(10), None, None),
        ];
        for (handler, concurrency, handler_processes, expected) in cases {
            let new = FunctionDocument::new("f", handler.clone());
            let advice = one_at_a_time(&FunctionDocument { concurrency, handler_processes, ..new });
            match expected {
                Some(part) => {
                    assert!(advice.as_ref().is_some_and(|a| a.contains(part)), "{part}: {advice:?}");
                }
                None => assert_eq!(advice, None, "{concurrency:?} {handler_processes:?}"),
            }
        }
    }
}
