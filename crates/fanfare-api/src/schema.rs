//! The JSON schema of `fanfare.toml`, and of its fields' names.

use serde_json::{Map, Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::{FunctionDocument, constrain};

const ROOT: &str = "FunctionDocument";

/// What `fanfare.toml` may hold, as a JSON schema (2020-12). Everything in it is optional: what is left out is found in
/// the directory, or has a default.
#[must_use]
pub fn settings_schema() -> Value {
    let mut schemas: Vec<(String, RefOr<Schema>)> = Vec::new();
    FunctionDocument::schemas(&mut schemas);
    schemas.push((ROOT.to_owned(), FunctionDocument::schema()));
    let mut definitions = Map::new();
    for (name, schema) in schemas {
        definitions.insert(name, plain(&schema));
    }
    constrain(&mut definitions);
    let forms = definitions.get_mut("FileDocument").and_then(|file| file.get_mut("oneOf"));
    if let Some(forms) = forms.and_then(Value::as_array_mut) {
        forms.push(
            json!({"type": "string", "description": "The content of this file beside `fanfare.toml`."}),
        );
    }
    let mut root = definitions.remove(ROOT).unwrap_or_default();
    if let Some(fields) = root.as_object_mut() {
        fields.remove("required");
        if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
            // The code is the directory's.
            properties.remove("code");
        }
        fields.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("title".to_owned(), json!("fanfare.toml"));
        fields.insert("description".to_owned(), json!("A function's settings."));
        fields.insert("$defs".to_owned(), Value::Object(definitions));
    }
    root
}

/// Names of the fields that the table at `path` of `fanfare.toml` may have; `None` where any name may be (`env`), or
/// where there is no table.
#[must_use]
pub fn settings_fields(path: &[&str]) -> Option<Vec<String>> {
    let root = settings_schema();
    let mut at = &root;
    for field in path {
        at = properties(&root, at).into_iter().find(|(name, _)| name == field)?.1;
    }
    let names: Vec<String> = properties(&root, at).into_iter().map(|(name, _)| name.clone()).collect();
    (!names.is_empty()).then_some(names)
}

/// The fields of a table, of all its forms where it has several.
fn properties<'a>(root: &'a Value, schema: &'a Value) -> Vec<(&'a String, &'a Value)> {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return target.map(|target| properties(root, target)).unwrap_or_default();
    }
    let mut found: Vec<_> = Vec::new();
    for combined in ["oneOf", "anyOf", "allOf"] {
        for form in schema.get(combined).and_then(Value::as_array).into_iter().flatten() {
            for (name, property) in properties(root, form) {
                if !found.iter().any(|(known, _)| *known == name) {
                    found.push((name, property));
                }
            }
        }
    }
    found.extend(schema.get("properties").and_then(Value::as_object).into_iter().flatten());
    found
}

/// The same with references that hold within one document.
fn plain(schema: &RefOr<Schema>) -> Value {
    let mut value = serde_json::to_value(schema).unwrap_or_default();
    relocate(&mut value);
    value
}

fn relocate(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get_mut("$ref") {
                *target = target.replace("#/components/schemas/", "#/$defs/");
            }
            fields.values_mut().for_each(relocate);
        }
        Value::Array(items) => items.iter_mut().for_each(relocate),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_is_defined_and_nothing_is_required() {
        let schema = settings_schema();
        let text = schema.to_string();
        let mut references = 0;
        for part in text.split("\"$ref\":\"").skip(1) {
            let target = part.split('"').next().unwrap();
            assert!(schema.pointer(target.strip_prefix('#').unwrap()).is_some(), "{target}");
            references += 1;
        }
        assert!(references > 5, "{text}");
        assert!(schema.get("required").is_none() && schema["properties"].get("code").is_none(), "{text}");
        assert_eq!(schema["additionalProperties"], false, "{text}");
        assert!(schema["properties"]["concurrency"]["description"].is_string(), "{text}");
    }

    #[test]
    fn names_of_fields() {
        let has = |path: &[&str], name: &str| {
            settings_fields(path).is_some_and(|names| names.iter().any(|known| known == name))
        };
        assert!(has(&[], "concurrency") && has(&[], "scaling") && !has(&[], "code"));
        assert!(has(&["scaling"], "stable_window") && has(&["limits"], "memory_limit"));
        for name in ["kind", "file", "command"] {
            assert!(has(&["handler"], name), "{name}");
        }
        for path in [&["env"][..], &["concurrency"], &["nothing"], &["scaling", "max"]] {
            assert_eq!(settings_fields(path), None, "{path:?}");
        }
    }
}
