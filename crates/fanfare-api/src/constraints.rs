//! What the checks allow, as JSON schema: the documents' schemas, and the limits that their checks have.

use std::time::Duration;

use fanfare_schedule::{EXPRESSION_BYTES_MAX, ZONE_BYTES_MAX};
use fanfare_types::limits;
use serde_json::{Map, Value, json};

use crate::check::{ENV_RESERVED, ENV_RESERVED_PREFIX, RUNTIMES};
use crate::scaling::{POLICIES_OF, PolicyName};
use crate::schedules::{SCHEDULE_HEADERS_RESERVED, SCHEDULE_METHODS};

/// A function's name.
const NAME_PATTERN: &str = "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$";
/// A file's name, or a directory's.
const PART_PATTERN: &str = "[A-Za-z0-9_][A-Za-z0-9_.-]*";
/// A digest as it is answered; any case is taken.
const DIGEST_PATTERN: &str = "^[0-9A-Fa-f]{64}$";
const NO_NUL: &str = "^[^\\u0000]*$";
/// Parts that are neither empty nor `..`.
const CODE_PATH_PATTERN: &str = "^(?!\\.\\.(/|$))[^/\\u0000]+(/(?!\\.\\.(/|$))[^/\\u0000]+)*$";
/// ASCII letters, digits, `_` and `$`, and whatever is not ASCII; no digit first.
const IDENTIFIER_PATTERN: &str = "^[^\\u0000-#%-@\\[-^`{-\\u007f][^\\u0000-#%-/:-@\\[-^`{-\\u007f]*\
    (\\.[^\\u0000-#%-@\\[-^`{-\\u007f][^\\u0000-#%-/:-@\\[-^`{-\\u007f]*)*$";
/// Groups of four, the last one padded; bits that a padded group does not use are 0.
const BASE64_PATTERN: &str =
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)$";
/// Path and query in the characters that RFC 3986 has for them.
const TARGET_PATTERN: &str = "^/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*(\\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?$";
/// Visible ASCII, with blanks within.
const FIELD_VALUE_PATTERN: &str = "^([!-~]([ -~]*[!-~])?)?$";
const NUMBER: &str = "([0-9]+\\.?[0-9]*|\\.[0-9]+) *";
const BYTES_UNIT: &str = "([bB]|[kKmMgGtT][iI]?[bB]?)?";
const CPU_UNIT: &str = "m?";
const DURATION_UNIT: &str = "(ns|us|µs|ms|s|m|h)?";

/// Adds to the schemas of a function what their checks demand. What no schema can say (one field forbids another's
/// value, an amount in text is out of bounds, code was not uploaded) is left to the checks.
pub fn constrain(schemas: &mut Map<String, Value>) {
    within(schemas, "FunctionDocument", function_fields());
    within(schemas, "LimitsDocument", limits_fields());
    within(schemas, "TimeoutsDocument", timeouts_fields());
    within(schemas, "SecretUseDocument", vec![("secret", name_schema())]);
    let text = json!({"maxLength": limits::FILE_BYTES_MAX});
    let base64 = json!({"maxLength": limits::FILE_BYTES_MAX.div_ceil(3) * 4, "pattern": format!("^$|{BASE64_PATTERN}")});
    alternatives(schemas, "FileDocument", &[("text", text), ("base64", base64)]);
    within(schemas, "ScalingDocument", scaling_fields());
    within(schemas, "ScheduleDocument", schedule_fields());
    within(schemas, "WebhookDocument", webhook_fields());
    if let Some(handler) = schemas.get_mut("HandlerDocument") {
        handlers(handler);
    }
    let text = json!({"minLength": 1, "maxLength": limits::SECRET_BYTES_MAX});
    let base64 = json!({
        "minLength": 4, "maxLength": limits::SECRET_BYTES_MAX.div_ceil(3) * 4, "pattern": BASE64_PATTERN,
    });
    alternatives(schemas, "SecretValueDocument", &[("value", text), ("value_base64", base64)]);
    if let Some(scaling) = schemas.get_mut("ScalingDocument") {
        *scaling = by_policy(scaling);
    }
}

/// The bounds of the number at `path` of a function's document, in words.
pub(crate) fn bounds(path: &str) -> Option<String> {
    let (fields, name) = match path.split_once('.') {
        None => (function_fields(), path),
        Some(("limits", name)) => (limits_fields(), name),
        Some(("scaling", name)) => (scaling_fields(), name),
        Some(_) => return None,
    };
    let (_, keywords) = fields.into_iter().find(|(of, _)| *of == name)?;
    let most = keywords.get("maximum")?;
    match (keywords.get("minimum"), keywords.get("exclusiveMinimum")) {
        (Some(least), _) => Some(format!("{least} to {most}")),
        (None, Some(least)) => Some(format!("above {least}, at most {most}")),
        (None, None) => None,
    }
}

/// What a function's name is.
#[must_use]
pub fn name_schema() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": limits::FUNCTION_NAME_LEN_MAX, "pattern": NAME_PATTERN})
}

/// What a digest is.
#[must_use]
pub fn digest_schema() -> Value {
    json!({"type": "string", "minLength": 64, "maxLength": 64, "pattern": DIGEST_PATTERN})
}

/// What a duration as text is.
#[must_use]
pub fn duration_text_schema() -> Value {
    amount(DURATION_UNIT)
}

fn function_fields() -> Vec<(&'static str, Value)> {
    let runtimes: Vec<Value> = RUNTIMES.iter().map(|name| json!(name)).chain([Value::Null]).collect();
    let reserved = ENV_RESERVED.join("|");
    let names = format!("^(?!{ENV_RESERVED_PREFIX})(?!({reserved})$)[^=\\u0000]+$");
    vec![
        ("name", name_schema()),
        ("runtime", json!({"enum": runtimes})),
        ("code", json!({"minLength": 64, "maxLength": 64, "pattern": DIGEST_PATTERN})),
        (
            "env",
            json!({
                "maxProperties": limits::ENV_VARS_MAX,
                "propertyNames": {"type": "string", "minLength": 1, "pattern": names},
                "additionalProperties": {"type": "string", "pattern": NO_NUL, "maxLength": limits::ENV_BYTES_MAX},
            }),
        ),
        (
            "secrets",
            json!({
                "maxProperties": limits::SECRETS_PER_FUNCTION_MAX,
                "propertyNames": {
                    "type": "string", "maxLength": limits::SECRET_PLACE_LEN_MAX,
                    "pattern": format!("^(?!{ENV_RESERVED_PREFIX})(?!({reserved})$){PART_PATTERN}$"),
                },
            }),
        ),
        (
            "files",
            json!({
                "maxProperties": limits::FILES_MAX,
                "propertyNames": {
                    "type": "string", "maxLength": limits::FILE_PATH_LEN_MAX,
                    "pattern": format!("^{PART_PATTERN}(/{PART_PATTERN}){{0,{}}}$", limits::FILE_PATH_PARTS_MAX - 1),
                },
            }),
        ),
        ("concurrency", json!({"minimum": 1, "maximum": limits::CONCURRENCY_MAX})),
        ("handler_processes", json!({"minimum": 1, "maximum": limits::CONCURRENCY_MAX})),
        ("queue_limit", json!({"minimum": 1, "maximum": limits::QUEUE_LIMIT_MAX})),
    ]
}

fn limits_fields() -> Vec<(&'static str, Value)> {
    let cpus = |milli: u64| milli as f64 / 1e3;
    let (cpu_min, cpu_max) = (cpus(limits::CPU_LIMIT_MIN_MILLI), cpus(limits::CPU_MAX_MILLI));
    // Steps of a thousandth.
    let some_cpu = json!({"type": "number", "minimum": cpu_min, "maximum": cpu_max, "multipleOf": 0.001});
    let any_cpu = json!({"type": "number", "minimum": 0, "maximum": cpu_max, "multipleOf": 0.001});
    vec![
        ("memory_request", bytes(0, limits::MEMORY_LIMIT_MAX_BYTES)),
        ("memory_limit", bytes(limits::MEMORY_LIMIT_MIN_BYTES, limits::MEMORY_LIMIT_MAX_BYTES)),
        ("cpu_request", quantity(vec![any_cpu], CPU_UNIT)),
        ("cpu_limit", quantity(vec![json!({"const": 0}), some_cpu], CPU_UNIT)),
        ("pids", json!({"minimum": limits::PIDS_LIMIT_MIN, "maximum": limits::PIDS_LIMIT_MAX})),
        ("tmp", bytes(limits::TMP_LIMIT_MIN_BYTES, limits::TMP_LIMIT_MAX_BYTES)),
    ]
}

fn timeouts_fields() -> Vec<(&'static str, Value)> {
    let (min, request_max) = (limits::TIMEOUT_MIN, limits::REQUEST_TIMEOUT_MAX);
    // None, or some.
    let idle = vec![json!({"const": 0}), seconds(min, request_max)];
    vec![
        ("start", duration(min, limits::START_TIMEOUT_MAX)),
        ("request", duration(min, request_max)),
        ("idle", quantity(idle, DURATION_UNIT)),
    ]
}

fn scaling_fields() -> Vec<(&'static str, Value)> {
    let (most, factor) = (limits::SCALE_MAX, limits::SCALING_FACTOR_MAX);
    let (window_min, window_max) = (limits::SCALING_WINDOW_MIN, limits::SCALING_WINDOW_MAX);
    let share = json!({"exclusiveMinimum": 0, "maximum": 1});
    let rate = json!({"minimum": 1, "maximum": factor});
    vec![
        ("count", json!({"minimum": 0, "maximum": most})),
        ("min", json!({"minimum": 0, "maximum": most})),
        ("max", json!({"minimum": 1, "maximum": most})),
        ("initial", json!({"minimum": 0, "maximum": most})),
        ("activation", json!({"minimum": 1, "maximum": most})),
        ("scale_down_delay", duration(Duration::ZERO, window_max)),
        ("target", json!({"minimum": 0.01, "maximum": factor})),
        ("target_utilization", share.clone()),
        ("stable_window", duration(window_min, window_max)),
        ("panic_window_share", share),
        ("panic_threshold", rate.clone()),
        ("max_scale_up_rate", rate.clone()),
        ("max_scale_down_rate", rate),
        ("scale_to_zero_grace", duration(Duration::ZERO, window_max)),
        ("tick", duration(limits::SCALING_TICK_MIN, window_max)),
        ("tolerance", json!({"minimum": 0, "maximum": 1})),
        ("stabilization_window", duration(Duration::ZERO, window_max)),
    ]
}

fn webhook_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("name", name_schema()),
        ("function", name_schema()),
        ("secret", name_schema()),
        ("tolerance", duration(limits::WEBHOOK_TOLERANCE_MIN, limits::WEBHOOK_TOLERANCE_MAX)),
    ]
}

fn schedule_fields() -> Vec<(&'static str, Value)> {
    let forbidden = SCHEDULE_HEADERS_RESERVED.join("|");
    // Some servers take `_` in a name for `-`.
    let names = format!("^(?!(?i:{forbidden})$)(?!(?i:x[-_]fanfare[-_]))[!#$%&'*+.^_`|~0-9A-Za-z-]+$");
    vec![
        ("name", name_schema()),
        ("function", name_schema()),
        ("cron", json!({"minLength": 1, "maxLength": EXPRESSION_BYTES_MAX})),
        ("zone", json!({"minLength": 1, "maxLength": ZONE_BYTES_MAX})),
        ("at", json!({"minLength": 1, "maxLength": ZONE_BYTES_MAX})),
        (
            "method",
            json!({"enum": SCHEDULE_METHODS.iter().map(|m| json!(m)).chain([Value::Null]).collect::<Vec<_>>()}),
        ),
        (
            "path",
            json!({"minLength": 1, "maxLength": limits::SCHEDULE_PATH_LEN_MAX, "pattern": TARGET_PATTERN}),
        ),
        (
            "headers",
            json!({
                "maxProperties": limits::SCHEDULE_HEADERS_MAX,
                "propertyNames": {"type": "string", "minLength": 1, "pattern": names},
                "additionalProperties": {"type": "string", "pattern": FIELD_VALUE_PATTERN},
            }),
        ),
        ("body", json!({"maxLength": limits::SCHEDULE_BODY_BYTES_MAX})),
        ("max_attempts", json!({"minimum": 1, "maximum": limits::ATTEMPTS_MAX})),
        ("max_age", duration(limits::TIMEOUT_MIN, limits::CALL_AGE_MAX)),
    ]
}

fn bytes(min: u64, max: u64) -> Value {
    quantity(vec![json!({"type": "integer", "minimum": min, "maximum": max})], BYTES_UNIT)
}

fn duration(min: Duration, max: Duration) -> Value {
    quantity(vec![seconds(min, max)], DURATION_UNIT)
}

fn seconds(min: Duration, max: Duration) -> Value {
    json!({"type": "number", "minimum": min.as_secs_f64(), "maximum": max.as_secs_f64()})
}

/// A number in the field's unit, text with a unit, or nothing.
fn quantity(mut forms: Vec<Value>, unit: &str) -> Value {
    forms.push(amount(unit));
    forms.push(json!({"type": "null"}));
    json!({"oneOf": forms})
}

/// Text with a unit.
fn amount(unit: &str) -> Value {
    let pattern = format!("^{NUMBER}{unit}$");
    json!({"type": "string", "maxLength": limits::QUANTITY_LEN_MAX, "pattern": pattern})
}

/// Adds keywords to the properties of one schema; what they replace is replaced.
fn within(schemas: &mut Map<String, Value>, schema: &str, fields: Vec<(&'static str, Value)>) {
    let Some(properties) = schemas.get_mut(schema).and_then(|schema| schema.get_mut("properties")) else {
        return;
    };
    for (name, keywords) in fields {
        if let Some(property) = properties.get_mut(name) {
            merge(property, keywords);
        }
    }
}

fn merge(schema: &mut Value, keywords: Value) {
    if let (Value::Object(schema), Value::Object(keywords)) = (schema, keywords) {
        schema.extend(keywords);
    }
}

/// Each kind of handler has its own fields and no others.
fn handlers(handler: &mut Value) {
    let path = json!({"minLength": 1, "maxLength": limits::HANDLER_LEN_MAX, "pattern": CODE_PATH_PATTERN});
    let identifier =
        json!({"minLength": 1, "maxLength": limits::HANDLER_LEN_MAX, "pattern": IDENTIFIER_PATTERN});
    let argument = json!({"type": "string", "maxLength": limits::COMMAND_BYTES_MAX, "pattern": NO_NUL});
    let mut program = argument.clone();
    merge(&mut program, json!({"minLength": 1}));
    let command = json!({
        "minItems": 1, "maxItems": limits::COMMAND_ARGS_MAX, "prefixItems": [program], "items": argument,
    });
    for form in handler.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
        merge(form, json!({"additionalProperties": false}));
        for (name, keywords) in [("file", &path), ("handler", &identifier), ("command", &command)] {
            if let Some(property) = form.pointer_mut(&format!("/properties/{name}")) {
                merge(property, keywords.clone());
            }
        }
    }
}

/// One of several fields, and nothing beside it.
fn alternatives(schemas: &mut Map<String, Value>, schema: &str, fields: &[(&str, Value)]) {
    let forms = schemas.get_mut(schema).and_then(|schema| schema.get_mut("oneOf"));
    for form in forms.and_then(Value::as_array_mut).into_iter().flatten() {
        merge(form, json!({"additionalProperties": false}));
        for (name, keywords) in fields {
            if let Some(property) = form.pointer_mut(&format!("/properties/{name}")) {
                merge(property, keywords.clone());
            }
        }
    }
}

/// Each policy has its own settings and no others. Without one, it is `kpa`.
fn by_policy(scaling: &Value) -> Value {
    let forms = [PolicyName::Kpa, PolicyName::Hpa, PolicyName::Fixed].map(|policy| {
        let mut form = scaling.clone();
        let mut required: Vec<&str> = Vec::new();
        if let Some(properties) = form.get_mut("properties").and_then(Value::as_object_mut) {
            for (name, policies) in POLICIES_OF {
                if !policies.contains(&policy) {
                    // What the other policies have may be there only as nothing.
                    properties.insert(name.to_owned(), json!({"type": "null"}));
                }
            }
            let named = json!(policy.word());
            let words = if policy == PolicyName::Kpa { vec![named, Value::Null] } else { vec![named] };
            let mut property = json!({"description": "What decides. Default `kpa`.", "enum": words});
            if policy != PolicyName::Kpa {
                required.push("policy");
                merge(&mut property, json!({"type": "string"}));
            }
            properties.insert("policy".to_owned(), property);
            if policy == PolicyName::Hpa
                && let Some(utilization) = properties.get_mut("target_utilization")
            {
                merge(utilization, json!({"minimum": 0.01, "maximum": 100}));
                utilization.as_object_mut().map(|keywords| keywords.remove("exclusiveMinimum"));
            }
            if policy == PolicyName::Fixed {
                required.push("count");
                if let Some(count) = properties.get_mut("count") {
                    merge(count, json!({"type": "integer"}));
                }
            }
        }
        if let Some(keywords) = form.as_object_mut() {
            keywords.remove("description");
            keywords.insert("title".to_owned(), json!(policy.word()));
            if !required.is_empty() {
                keywords.insert("required".to_owned(), json!(required));
            }
        }
        form
    });
    let description = scaling.get("description").cloned().unwrap_or_default();
    json!({"description": description, "oneOf": forms})
}

#[cfg(test)]
mod tests {
    use utoipa::{PartialSchema, ToSchema};

    use super::*;
    use crate::FunctionDocument;

    fn constrained() -> Value {
        let mut schemas = vec![("FunctionDocument".to_owned(), FunctionDocument::schema())];
        FunctionDocument::schemas(&mut schemas);
        let mut schemas: Map<String, Value> =
            schemas.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap())).collect();
        constrain(&mut schemas);
        Value::Object(schemas)
    }

    #[test]
    fn every_field_that_is_checked_has_its_limits() {
        let schemas = constrained();
        let cases: &[(&str, Value)] = &[
            ("FunctionDocument/properties/name/maxLength", json!(63)),
            ("FunctionDocument/properties/concurrency/maximum", json!(1000)),
            ("FunctionDocument/properties/handler_processes/minimum", json!(1)),
            ("FunctionDocument/properties/queue_limit/maximum", json!(1_000_000)),
            ("FunctionDocument/properties/runtime/enum", json!(["process", "fake", null])),
            ("FunctionDocument/properties/env/maxProperties", json!(256)),
            ("FunctionDocument/properties/code/minLength", json!(64)),
            ("FunctionDocument/properties/name/type", json!("string")),
            ("LimitsDocument/properties/memory_limit/oneOf/0/minimum", json!(8 << 20)),
            ("LimitsDocument/properties/cpu_limit/oneOf/1/maximum", json!(1024.0)),
            ("LimitsDocument/properties/pids/minimum", json!(4)),
            ("TimeoutsDocument/properties/start/oneOf/0/maximum", json!(3600.0)),
            ("HandlerDocument/oneOf/0/properties/file/maxLength", json!(1024)),
            ("HandlerDocument/oneOf/1/properties/handler/maxLength", json!(1024)),
            ("HandlerDocument/oneOf/2/properties/command/minItems", json!(1)),
            ("HandlerDocument/oneOf/3/additionalProperties", json!(false)),
            ("ScalingDocument/oneOf/0/properties/count/type", json!("null")),
            ("ScalingDocument/oneOf/0/properties/max/maximum", json!(100_000)),
            ("ScalingDocument/oneOf/1/properties/target_utilization/maximum", json!(100)),
            ("ScalingDocument/oneOf/2/required", json!(["policy", "count"])),
            ("ScalingDocument/oneOf/2/additionalProperties", json!(false)),
        ];
        for (path, limit) in cases {
            assert_eq!(schemas.pointer(&format!("/{path}")), Some(limit), "{path}");
        }
        for table in ["FunctionDocument", "LimitsDocument", "TimeoutsDocument"] {
            assert_eq!(schemas[table]["additionalProperties"], false, "{table}");
        }
    }

    #[test]
    fn every_policy_s_settings_are_fields() {
        let schemas = constrained();
        for (field, policies) in POLICIES_OF {
            assert!(!policies.is_empty(), "{field}");
            for form in schemas["ScalingDocument"]["oneOf"].as_array().unwrap() {
                assert!(form["properties"].get(field).is_some(), "{field}");
            }
        }
        assert_eq!(schemas["ScalingDocument"]["oneOf"][0]["properties"].as_object().unwrap().len(), 21);
    }
}
