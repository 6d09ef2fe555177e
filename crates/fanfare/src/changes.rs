//! How two registrations of a function differ, in a line for each setting.

use std::collections::BTreeMap;

use fanfare_api::{FunctionDocument, HandlerDocument, ScalingDocument};
use fanfare_types::FunctionSpec;
use serde_json::Value;

use crate::printer::{human_bytes, human_duration};
use crate::settings::SettingsArgs;

/// What of a document is no setting: what runs, and where.
const CODE_FIELDS: [&str; 4] = ["name", "runtime", "handler", "code"];
/// Which policy it is, and what `fixed` alone has, which is shown with it.
const POLICY: &str = "scaling.policy";
const COUNT: &str = "scaling.count";
/// What every policy has, and the policy itself.
const SHARED_BY_POLICIES: [&str; 7] = [
    POLICY,
    "scaling.min",
    "scaling.max",
    "scaling.initial",
    "scaling.activation",
    "scaling.scale_down_delay",
    "scaling.on_demand",
];

/// Tables whose keys are the user's own, and what one of them is called. Of these the names are told and no values: those
/// of variables may be secrets, and files are long.
pub(crate) const NAMED: [(&str, &str); 3] = [("env.", "env "), ("secrets.", "secret "), ("files.", "file ")];

fn is_named(setting: &str) -> bool {
    NAMED.iter().any(|(_, word)| setting.starts_with(word))
}

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
        match (is_named(setting), &self.before, &self.after) {
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
            Some(after) if !is_named(&self.setting) => format!("{} {after}", self.setting),
            _ => self.setting.clone(),
        }
    }
}

/// The handler and the settings in which `after` differs from `before`. A document that is not valid differs in nothing: it is
/// refused, with its reason, where it is sent.
pub(crate) fn changes(before: &FunctionDocument, after: &FunctionDocument) -> Vec<Change> {
    let handler = (before.handler != after.handler).then(|| Change {
        setting: "handler".to_owned(),
        field: "handler".to_owned(),
        before: Some(handler_words(&before.handler)),
        after: Some(handler_words(&after.handler)),
        default: false,
    });
    let (Some(before), Some(after), Some(defaults)) = (flat(before), flat(after), defaults(after)) else {
        return Vec::new();
    };
    let names: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let another_policy = before.get(POLICY) != after.get(POLICY);
    // What comes and goes with a policy is no change of its own.
    let implied = |name: &str| {
        let owned = name.starts_with("scaling.") && !SHARED_BY_POLICIES.contains(&name);
        another_policy && owned && (name == COUNT || after.get(name) == defaults.get(name))
    };
    let differ = |name: &&String| before.get(*name) != after.get(*name) && !implied(name);
    let settings = names.into_iter().filter(differ).map(|name| {
        let shown = |fields: &BTreeMap<String, Value>| {
            let value = shown(name, fields.get(name)?);
            Some(match fields.get(COUNT) {
                Some(count) if name == POLICY => format!("{value} at {count}"),
                _ => value,
            })
        };
        let named =
            NAMED.iter().find_map(|(field, word)| Some(format!("{word}{}", name.strip_prefix(field)?)));
        let setting = named.unwrap_or_else(|| SettingsArgs::word_of(name).unwrap_or(name).to_owned());
        let default = after.get(name) == defaults.get(name);
        Change { setting, field: name.clone(), before: shown(&before), after: shown(&after), default }
    });
    handler.into_iter().chain(settings).collect()
}

/// A handler for people: its kind, and what is run.
pub(crate) fn handler_words(handler: &HandlerDocument) -> String {
    match handler {
        HandlerDocument::Python { file, handler } => format!("python {file}:{handler}"),
        HandlerDocument::Node { file, handler } => format!("node {file}:{handler}"),
        HandlerDocument::Http { command, .. } => format!("http {}", command.join(" ")),
        HandlerDocument::Fake {} => "fake".to_owned(),
    }
}

/// Every setting of `document` by its path as it would be if only its policy were given.
fn defaults(document: &FunctionDocument) -> Option<BTreeMap<String, Value>> {
    let bare = bare(document);
    let plain = flat(&bare)?;
    let ScalingDocument { policy, count, .. } = document.scaling;
    let scaling = ScalingDocument { policy, count, ..ScalingDocument::default() };
    let mut defaults = flat(&FunctionDocument { scaling, ..bare })?;
    defaults.insert(POLICY.to_owned(), plain.get(POLICY)?.clone());
    defaults.remove(COUNT);
    Some(defaults)
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
        _ if NAMED.iter().any(|(field, _)| name.starts_with(field)) => "…".to_owned(),
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
    use fanfare_api::{FileDocument, PolicyName, Quantity, SecretPlaceName, SecretUseDocument};

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
        before.files.insert("a.json".into(), FileDocument::Text("canary".into()));
        before.scaling.stable_window = Some(Quantity::from("30s"));
        let mut after = function();
        after.concurrency = Some(4);
        after.env.set("B", "2");
        after.env.set("C", "canary");
        let used = SecretUseDocument { secret: "db".into(), place: SecretPlaceName::File };
        after.secrets.insert("db.txt".into(), used);
        let told: Vec<_> = changes(&before, &after).iter().map(Change::to_string).collect();
        let expected = [
            "concurrency 1 -> 4",
            "env B changed",
            "env C added",
            "env TOKEN removed",
            "file a.json removed",
            "memory 256 MiB -> 128 MiB (default)",
            "scaling.stable_window 30.0 s -> 60.0 s (default)",
            "secret db.txt added",
        ];
        assert_eq!(told, expected);
        assert_eq!(changes(&before, &after)[5].now(), "memory 128 MiB");
        assert_eq!(changes(&before, &after)[1].now(), "env B");
    }

    #[test]
    fn another_policy_or_handler_is_one_line() {
        let fixed = |count| {
            let scaling =
                ScalingDocument { policy: Some(PolicyName::Fixed), count: Some(count), ..Default::default() };
            FunctionDocument { scaling, ..function() }
        };
        let hpa = |tolerance| {
            let scaling = ScalingDocument { policy: Some(PolicyName::Hpa), tolerance, ..Default::default() };
            FunctionDocument { scaling, ..function() }
        };
        let command = vec!["./server".to_owned(), "-v".to_owned()];
        let handler =
            HandlerDocument::Http { command, inherits_listener: false, protocol: Default::default() };
        let http = FunctionDocument { handler, ..function() };
        let cases: [(_, _, &[&str]); 7] = [
            (function(), fixed(3), &["policy kpa -> fixed at 3"]),
            (fixed(3), function(), &["policy fixed at 3 -> kpa (default)"]),
            (fixed(3), fixed(5), &["scale 3 -> 5"]),
            (function(), hpa(None), &["policy kpa -> hpa"]),
            (function(), hpa(Some(0.2)), &["policy kpa -> hpa", "scaling.tolerance none -> 0.2"]),
            (hpa(None), fixed(1), &["policy hpa -> fixed at 1"]),
            (function(), http, &["handler python f.py:handler -> http ./server -v"]),
        ];
        for (before, after, expected) in cases {
            let told: Vec<_> = changes(&before, &after).iter().map(Change::to_string).collect();
            assert_eq!(told, expected);
        }
        let told: Vec<_> = chosen(&fixed(10)).iter().map(Change::now).collect();
        assert_eq!(told, ["policy fixed at 10"]);
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
