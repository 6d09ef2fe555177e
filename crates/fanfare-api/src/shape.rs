//! What is wrong with the shape of a document, in a user's words and not in the parser's.

use serde_json::Value;

use crate::FieldError;

/// One field of a kind of handler.
struct Field {
    name: &'static str,
    required: bool,
    allowed: &'static str,
    fits: fn(&Value) -> bool,
}

const CODE: [Field; 2] = [
    Field { name: "file", required: true, allowed: "the path of a file in the code", fits: Value::is_string },
    Field { name: "handler", required: false, allowed: "a name in the file", fits: Value::is_string },
];
const PROGRAM: [Field; 3] = [
    Field {
        name: "command",
        required: true,
        allowed: "a list of texts: the program and its arguments",
        fits: |value| value.as_array().is_some_and(|arguments| arguments.iter().all(Value::is_string)),
    },
    Field { name: "inherits_listener", required: false, allowed: "true, false", fits: Value::is_boolean },
    Field {
        name: "protocol",
        required: false,
        allowed: "http1, h2c",
        fits: |value| value == "http1" || value == "h2c",
    },
];
/// Kinds of handlers, and what each has beside its `kind`.
const KINDS: [(&str, &[Field]); 4] = [("python", &CODE), ("node", &CODE), ("http", &PROGRAM), ("fake", &[])];

/// What is wrong with a handler, if that is its shape.
pub(crate) fn handler_error(handler: &Value) -> Option<FieldError> {
    let kinds = || KINDS.map(|(kind, _)| kind).join(", ");
    let Value::Object(given) = handler else {
        let allowed = format!("a table with a kind: {}", kinds());
        return Some(FieldError::new("handler", handler, allowed));
    };
    let Some(kind) = given.get("kind") else { return Some(FieldError::missing("handler.kind", kinds())) };
    let Some((_, fields)) = KINDS.iter().find(|(known, _)| kind == known) else {
        return Some(FieldError::new("handler.kind", kind, kinds()));
    };
    for (name, value) in given.iter().filter(|(name, _)| *name != "kind") {
        let path = format!("handler.{name}");
        match fields.iter().find(|field| field.name == name) {
            Some(field) if !(field.fits)(value) => return Some(FieldError::new(path, value, field.allowed)),
            Some(_) => {}
            None => return Some(FieldError::new(path, "given", foreign(name, fields))),
        }
    }
    let missing = fields.iter().find(|field| field.required && !given.contains_key(field.name))?;
    Some(FieldError::missing(format!("handler.{}", missing.name), missing.allowed))
}

/// What is wrong with a file of `files`, if that is its shape. Its content is not repeated.
pub(crate) fn file_error(path: &str, file: &Value) -> Option<FieldError> {
    let allowed = "a table with either text or base64, and that a text";
    let given = match file {
        Value::Object(given) if given.len() > 1 => "several fields",
        Value::Object(given) if given.is_empty() => "an empty table",
        Value::Object(given) if given.values().all(Value::is_string) => return None,
        Value::Object(_) => "a table whose value is no text",
        Value::Array(_) => "a list",
        Value::String(_) => "text",
        _ => "neither",
    };
    Some(FieldError::new(path, given, allowed))
}

/// Where a field would be right that is none of `fields`.
fn foreign(name: &str, fields: &[Field]) -> String {
    let has = |(_, fields): &&(&str, &[Field])| fields.iter().any(|field| field.name == name);
    let kinds: Vec<_> = KINDS.iter().filter(has).map(|(kind, _)| *kind).collect();
    match kinds.as_slice() {
        [] => {
            let names: Vec<_> = ["kind"].into_iter().chain(fields.iter().map(|field| field.name)).collect();
            format!("unknown field; there are {}", names.join(", "))
        }
        kinds => format!("only with kind {}", kinds.join(" and ")),
    }
}

/// What the parser said about `field`, which holds `value`. The root of a document is the field `body`.
pub(crate) fn plainly(field: String, value: String, said: &str) -> FieldError {
    let within = |name: &str| if field == "body" { name.to_owned() } else { format!("{field}.{name}") };
    let words = |text: &str| text.split('`').skip(1).step_by(2).collect::<Vec<_>>().join(", ");
    if let Some(name) = said.strip_prefix("missing field `") {
        let error = FieldError::missing(within(name.trim_end_matches('`')), "a value");
        return FieldError { message: format!("{} is missing", error.field), ..error };
    }
    if let Some(name) = said.strip_prefix("duplicate field `") {
        return FieldError::new(within(name.trim_end_matches('`')), "given twice", "once");
    }
    let Some((what, expected)) = said.split_once(", expected ") else {
        return FieldError { message: format!("{field}: {said}"), ..FieldError::new(field, value, said) };
    };
    match what {
        _ if what.starts_with("unknown variant") => FieldError::new(field, value, words(expected)),
        _ if what.starts_with("unknown field") => {
            let limit = format!("unknown field; there are {}", words(expected));
            FieldError { message: format!("{field} is an {limit}"), ..FieldError::new(field, value, limit) }
        }
        _ => FieldError::new(field, value, expected),
    }
}

/// A variable or a header field whose value is no text. What it is instead is told, and never itself: it may be a secret.
pub(crate) fn variable_error(path: &str, value: Option<&Value>) -> FieldError {
    let kind = match value {
        None => "missing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "true or false",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "text",
        Some(Value::Array(_)) => "a list",
        Some(Value::Object(_)) => "a table",
    };
    let limit = if path.contains('.') { "text, in quotes" } else { "a table of names and texts" };
    FieldError::new(path, kind, limit)
}
