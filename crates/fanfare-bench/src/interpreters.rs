//! Interpreters outside any sandbox: what a platform without sandboxes, zygotes and shims would start for one call.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fanfare_api::HandlerDocument;

use crate::error::{Context, Error, Result};

/// A language whose handlers are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Python,
    /// Python whose import leaves a thread, which no fork copies: its sandboxes start an interpreter each.
    PythonWithThread,
    Node,
}

impl Language {
    /// The file of a handler that answers with a constant, and what is in it.
    pub(crate) fn handler(self) -> (&'static str, &'static str) {
        match self {
            Language::Python => {
                ("hello.py", "def handler(event, context):\n    return {\"hello\": \"world\"}\n")
            }
            Language::PythonWithThread => (
                "thread.py",
                "import threading\n\
                 threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
                 def handler(event, context):\n    return {\"hello\": \"world\"}\n",
            ),
            Language::Node => ("hello.js", "exports.handler = async () => ({ hello: \"world\" });\n"),
        }
    }

    /// As it is registered.
    pub(crate) fn document(self) -> HandlerDocument {
        let (file, handler) = (self.handler().0.to_owned(), "handler".to_owned());
        match self {
            Language::Python | Language::PythonWithThread => HandlerDocument::Python { file, handler },
            Language::Node => HandlerDocument::Node { file, handler },
        }
    }

    fn program(self) -> &'static str {
        match self {
            Language::Python | Language::PythonWithThread => "/usr/bin/python3",
            Language::Node => "/usr/bin/node",
        }
    }

    /// Imports the handler from the directory in the first argument, calls it, and prints what it returned.
    fn call_script(self) -> [&'static str; 2] {
        match self {
            Language::Python | Language::PythonWithThread => [
                "-c",
                "import sys; sys.path.insert(0, sys.argv[1]); import hello, json; \
                 sys.stdout.write(json.dumps(hello.handler({}, None)))",
            ],
            Language::Node => [
                "-e",
                "require(process.argv[1] + '/hello.js').handler({}, null)\
                 .then(out => process.stdout.write(JSON.stringify(out)))",
            ],
        }
    }

    fn nothing(self) -> [&'static str; 2] {
        match self {
            Language::Python | Language::PythonWithThread => ["-c", "pass"],
            Language::Node => ["-e", ""],
        }
    }

    /// As one would type it.
    pub(crate) fn nothing_words(self) -> &'static str {
        match self {
            Language::Python | Language::PythonWithThread => "python3 -c pass",
            Language::Node => "node -e ''",
        }
    }

    /// Starts an interpreter that does nothing, until it has ended.
    pub(crate) fn start_for_nothing(self) -> Result<Duration> {
        self.timed(&self.nothing(), None, b"")
    }

    /// Starts an interpreter, has it call the handler once, until it has ended.
    pub(crate) fn start_for_a_call(self, code: &Path) -> Result<Duration> {
        let expected: &[u8] = match self {
            Language::Python | Language::PythonWithThread => b"{\"hello\": \"world\"}",
            Language::Node => b"{\"hello\":\"world\"}",
        };
        self.timed(&self.call_script(), Some(code.to_owned()), expected)
    }

    fn timed(self, args: &[&str; 2], code: Option<PathBuf>, expected: &[u8]) -> Result<Duration> {
        let begun = Instant::now();
        let output = Command::new(self.program()).args(args).args(code).stdin(Stdio::null()).output();
        let output = output.context(format!("start {}", self.program()))?;
        let elapsed = begun.elapsed();
        match output.status.success() && output.stdout == expected {
            true => Ok(elapsed),
            false => Err(Error::new(format!(
                "{} {}\n{}{}",
                self.program(),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_start_and_call() {
        let dir = tempfile::tempdir().unwrap();
        for language in [Language::Python, Language::Node] {
            if !Path::new(language.program()).exists() {
                eprintln!("skipped: {} is missing", language.program());
                continue;
            }
            let (file, text) = language.handler();
            assert!(language.start_for_a_call(dir.path()).is_err(), "there is no {file} yet");
            std::fs::write(dir.path().join(file), text).unwrap();
            assert!(language.start_for_a_call(dir.path()).unwrap() > Duration::ZERO);
            assert!(language.start_for_nothing().unwrap() > Duration::ZERO);
        }
    }
}
