//! Why a command failed, as a document for programs: the fields of a problem that there are, and the exit code.

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::printer::Output;

/// One line of JSON on standard error, the last of a command that fails. Its fields do not change within a major version.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorDocument<'a> {
    r#type: String,
    title: String,
    /// What went wrong.
    detail: &'a str,
    /// The platform's stable code, or else the exit code's word.
    reason: &'a str,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_tail: Option<&'a str>,
    /// What goes on working nevertheless.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl<'a> From<&'a Failure> for ErrorDocument<'a> {
    fn from(failure: &'a Failure) -> Self {
        let stated = failure.stated.as_deref();
        let reason = stated.map_or(failure.exit.word(), |stated| &stated.reason);
        let hints: Vec<_> = failure.next.iter().chain(&failure.undo).map(String::as_str).collect();
        ErrorDocument {
            r#type: format!("urn:fanfare:reason:{reason}"),
            title: reason.replace('-', " "),
            detail: &failure.what,
            reason,
            exit_code: failure.exit as u8,
            field: stated.and_then(|stated| stated.field.as_deref()),
            limit: stated.and_then(|stated| stated.limit.as_deref()),
            value: stated.and_then(|stated| stated.value.as_deref()),
            request_id: stated.and_then(|stated| stated.request_id.as_deref()),
            log_tail: stated.and_then(|stated| stated.log_tail.as_deref()),
            note: failure.still.as_deref(),
            hint: (!hints.is_empty()).then(|| hints.join("; ")),
        }
    }
}

impl ErrorDocument<'_> {
    pub(crate) fn line(&self) -> String {
        // A document of texts and a number has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether results, and so failures, are documents.
pub(crate) fn is_document(output: Output) -> bool {
    matches!(output, Output::Json | Output::Yaml)
}

/// How the result of the command is to be printed.
pub(crate) fn output_of(mut matches: &ArgMatches) -> Output {
    let mut found = Output::Text;
    loop {
        if let Ok(Some(output)) = matches.try_get_one::<Output>("output") {
            found = *output;
        }
        match matches.subcommand() {
            Some((_, verb)) => matches = verb,
            None => return found,
        }
    }
}

/// Whether a command line that cannot be read asks for documents.
pub(crate) fn asks_for_documents(arguments: impl Iterator<Item = String>) -> bool {
    let mut arguments = arguments.take_while(|argument| argument != "--");
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "-o" | "--output" => arguments.next(),
            given => given
                .strip_prefix("--output=")
                .or_else(|| given.strip_prefix("-o=").or_else(|| given.strip_prefix("-o")))
                .map(ToOwned::to_owned),
        };
        if value.is_some_and(|value| matches!(value.as_str(), "json" | "yaml")) {
            return true;
        }
    }
    false
}

/// What is wrong with a command line.
pub(crate) fn misuse(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let what = words.join(" ");
    let context = |kind| error.get(kind).and_then(said);
    let mut failure =
        Failure::usage(what.strip_prefix("error: ").unwrap_or(&what)).because(Exit::Usage.word());
    if let Some(stated) = &mut failure.stated {
        stated.field = context(ContextKind::InvalidArg).or_else(|| context(ContextKind::InvalidSubcommand));
        stated.value = context(ContextKind::InvalidValue);
        stated.limit = context(ContextKind::ValidValue).or_else(|| context(ContextKind::ValidSubcommand));
    }
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let meant = suggested.into_iter().find_map(context).map(|meant| format!("did you mean {meant}?"));
    failure.next(meant.unwrap_or_else(|| "`--help` after the verb says what there is".to_owned()))
}

fn said(value: &ContextValue) -> Option<String> {
    match value {
        ContextValue::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        ContextValue::Strings(texts) => Some(texts.join(", ")).filter(|text| !text.is_empty()),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        ContextValue::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_asked_for_in_every_way_to_write_it() {
        let cases = [
            (&["list", "-o", "json"][..], true),
            (&["list", "-ojson", "--nope"], true),
            (&["list", "-o=yaml"], true),
            (&["list", "--output=json"], true),
            (&["list", "--output", "yaml"], true),
            (&["list", "-o", "text"], false),
            (&["list", "-o"], false),
            (&["deploy", "x", "--", "-o", "json"], false),
        ];
        for (arguments, expected) in cases {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned());
            assert_eq!(
                asks_for_documents(arguments.clone()),
                expected,
                "{:?}",
                arguments.collect::<Vec<_>>()
            );
        }
    }
}
