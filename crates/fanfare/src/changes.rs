//! How two registrations of a function differ, in a line for each setting.

use std::collections::BTreeMap;

use fanfare_api::{FunctionDocument, HandlerDocument};
use fanfare_types::FunctionSpec;
use serde_json::Value;

use crate::printer::{human_bytes, human_duration};
use crate::settings::SettingsArgs;

/// What of a document is no setting: what runs, and where.
const CODE_FIELDS: [&str; 4] = ["name", "runtime", "handler", "code"];

/// One setting that differs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// As on the command line where there is a flag for it, else its path in `fanfare.toml`.
    pub(crate) setting: String,
    /// Its path in `fanfare.toml`.
    pub(crate) field: String,
    before: Option<String>,
    after: Option<String>,
    /// Whether it is back at its default.
    default: bool,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let setting = &self.setting;
        let default = if self.default { " (default)" } else { "" };
        match (setting.starts_with("env "), &self.before, &self.after) {
            (true, None, _) => write!(f, "{setting} added"),
            (true, _, None) => write!(f, "{setting} removed"),
            (true, ..) => write!(f, "{setting} changed"),
            (false, before, after) => {
                let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
                write!(f, "{setting} {} -> {}{default}", word(before), word(after))
            }
        }
    }
}

impl Change {
    /// The setting and what it has become, `memory 256 MiB`; of a variable the name alone.
    pub(crate) fn now(&self) -> String {
        match &self.after {
            Some(after) if !self.setting.starts_with("env ") => format!("{} {after}", self.setting),
            _ => self.setting.clone(),
        }
    }
}

/// Settings in which `after` differs from `before`, code apart. A document that is not valid differs in nothing: it is
/// refused, with its reason, where it is sent.
pub(crate) fn changes(before: &FunctionDocument, after: &FunctionDocument) -> Vec<Change> {
    let (Some(before), Some(after), Some(defaults)) = (flat(before), flat(after), flat(&bare(after))) else {
        return Vec::new();
    };
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differ = |name: &&String| before.get(*name) != after.get(*name);
    names
        .into_iter()
        .filter(differ)
        .map(|name| {
            let shown = |fields: &BTreeMap<String, Value>| fields.get(name).map(|value| shown(name, value));
            let setting = match name.strip_prefix("env.") {
                Some(variable) => format!("env {variable}"),
                None => SettingsArgs::word_of(name).unwrap_or(name).to_owned(),
            };
            let default = after.get(name) == defaults.get(name);
            Change { setting, field: name.clone(), before: shown(&before), after: shown(&after), default }
        })
        .collect()
}

/// Settings that are not the defaults.
pub(crate) fn chosen(document: &FunctionDocument) -> Vec<Change> {
    changes(&bare(document), document)
}

/// The same code with every setting at its default.
fn bare(document: &FunctionDocument) -> FunctionDocument {
    let FunctionDocument { name, runtime, handler, code, .. } = document.clone();
    FunctionDocument { runtime, code, ..FunctionDocument::new(&name, handler) }
}

/// Every setting by its path, defaults filled in.
fn flat(document: &FunctionDocument) -> Option<BTreeMap<String, Value>> {
    let mut document = document.clone();
    if document.code.is_none() && document.handler != (HandlerDocument::Fake {}) {
        // Any will do: no code is compared.
        document.code = Some("0".repeat(64));
    }
    let spec = FunctionSpec::try_from(document).ok()?;
    let Ok(Value::Object(fields)) = serde_json::to_value(FunctionDocument::from(&spec)) else { return None };
    let mut flat = BTreeMap::new();
    for (name, value) in fields.into_iter().filter(|(name, _)| !CODE_FIELDS.contains(&name.as_str())) {
        match value {
            Value::Object(inner) => {
                flat.extend(inner.into_iter().map(|(field, value)| (format!("{name}.{field}"), value)));
            }
            value => drop(flat.insert(name, value)),
        }
    }
    Some(flat)
}

/// A value for people. Those of variables may be secrets.
fn shown(name: &str, value: &Value) -> String {
    let duration = name.starts_with("timeouts.")
        || name == "scaling.tick"
        || ["_delay", "_window", "_grace"].iter().any(|end| name.ends_with(end));
    match value {
        _ if name.starts_with("env.") => "…".to_owned(),
        Value::Number(bytes) if name.starts_with("limits.memory") || name == "limits.tmp" => {
            bytes.as_u64().map_or_else(|| bytes.to_string(), human_bytes)
        }
        Value::Number(number) if name == "limits.cpu_limit" && number.as_f64() == Some(0.0) => {
            "no limit".to_owned()
        }
        Value::Number(seconds) if duration => {
            let seconds = seconds.as_f64().unwrap_or_default();
            if seconds == 0.0 { "0".to_owned() } else { human_duration(seconds) }
        }
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use fanfare_api::Quantity;

    use super::*;

    fn function() -> FunctionDocument {
        FunctionDocument::new("f", HandlerDocument::Python { file: "f.py".into(), handler: "handler".into() })
    }

    #[test]
    fn what_differs_is_named_as_on_the_command_line_and_variables_without_values() {
        let mut before = function();
        before.limits.memory_limit = Some(Quantity::from("256MiB"));
        before.env.set("TOKEN", "canary");
        before.env.set("B", "1");
        before.scaling.stable_window = Some(Quantity::from("30s"));
        let mut after = function();
        after.concurrency = Some(4);
        after.env.set("B", "2");
        after.env.set("C", "canary");
        let told: Vec<_> = changes(&before, &after).iter().map(Change::to_string).collect();
        let expected = [
            "concurrency 1 -> 4",
            "env B changed",
            "env C added",
            "env TOKEN removed",
            "memory 256 MiB -> 128 MiB (default)",
            "scaling.stable_window 30.0 s -> 60.0 s (default)",
        ];
        assert_eq!(told, expected);
        assert_eq!(changes(&before, &after)[4].now(), "memory 128 MiB");
        assert_eq!(changes(&before, &after)[1].now(), "env B");
    }

    #[test]
    fn the_same_settings_in_other_words_are_no_change() {
        let mut given = function();
        given.limits.memory_limit = Some(Quantity::from("128MiB"));
        given.timeouts.request = Some(Quantity::from("1m"));
        given.code = Some("a".repeat(64));
        assert_eq!(changes(&function(), &given), []);
    }
}
