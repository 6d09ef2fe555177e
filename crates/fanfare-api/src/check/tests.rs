mod random;

use fanfare_types::{Hpa, Kpa, OnDemand, Scaling, ScalingPolicy};
use serde_json::{Value, json};

use super::*;
use crate::{decode_stored, encode_stored};

const DIGEST: &str = "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5";

fn hello() -> Value {
    json!({"name": "hello", "code": DIGEST, "handler": {"kind": "python", "file": "hello.py"}})
}

/// `hello` with the value at a dotted path replaced.
fn with(path: &str, value: Value) -> Value {
    let mut document = hello();
    let mut at = &mut document;
    for key in path.split('.') {
        let Value::Object(fields) = at else { panic!("{path} leads into a scalar") };
        at = fields.entry(key).or_insert_with(|| json!({}));
    }
    *at = value;
    document
}

fn check(document: &Value) -> Result<FunctionSpec, FieldError> {
    FunctionSpec::try_from(FunctionDocument::from_json(document.to_string().as_bytes())?)
}

#[test]
fn name_and_handler_suffice() {
    let spec = check(&hello()).unwrap();
    assert_eq!(spec.runtime.as_ref(), "process");
    assert_eq!(spec.contract, Contract::Python { file: "hello.py".into(), handler: "handler".into() });
    assert_eq!(spec.sizing, Sizing::default());
    assert_eq!(spec.timeouts, Timeouts::default());
    assert_eq!(spec.scaling, Scaling::default());
    assert_eq!(spec.queue_limit, limits::QUEUE_LIMIT_DEFAULT);
    assert_eq!(spec.balance, Balance::Knative);
    let fake = check(&json!({"name": "f", "handler": {"kind": "fake"}})).unwrap();
    assert_eq!((fake.runtime.as_ref(), fake.code), ("fake", None));
}

#[test]
fn amounts_are_numbers_or_text() {
    let cases = [
        ("limits.memory_limit", json!("256MiB"), "limits.memory_limit", json!(256 << 20)),
        ("limits.cpu_limit", json!("500m"), "limits.cpu_limit", json!(0.5)),
        ("limits.cpu_request", json!("2"), "limits.cpu_request", json!(2)),
        ("timeouts.request", json!("500ms"), "timeouts.request", json!(0.5)),
        ("timeouts.start", json!("2m"), "timeouts.start", json!(120)),
        ("scaling.scale_down_delay", json!("1h"), "scaling.scale_down_delay", json!(3600)),
    ];
    for (path, text, field, number) in cases {
        let spec = check(&with(path, text.clone())).unwrap();
        assert_eq!(spec, check(&with(path, number.clone())).unwrap(), "{field}");
        let back = serde_json::to_value(FunctionDocument::from(&spec)).unwrap();
        let pointer = format!("/{}", field.replace('.', "/"));
        assert_eq!(back.pointer(&pointer), Some(&number), "{field} is answered as a number");
    }
}

#[test]
fn one_amount_makes_room_for_the_other() {
    let spec = check(&with("limits.memory_request", json!("1GiB"))).unwrap();
    assert_eq!((spec.sizing.request.memory_bytes, spec.sizing.limit.memory_bytes), (1 << 30, 1 << 30));
    let spec = check(&with("limits.memory_limit", json!("8MiB"))).unwrap();
    assert_eq!((spec.sizing.request.memory_bytes, spec.sizing.limit.memory_bytes), (8 << 20, 8 << 20));
    assert_eq!(spec.sizing.tmp_limit_bytes, 4 << 20, "full before the memory is used up");
    let spec = check(&with("limits.memory_limit", json!("1GiB"))).unwrap();
    assert_eq!(spec.sizing.tmp_limit_bytes, limits::TMP_LIMIT_DEFAULT_BYTES);
}

#[test]
fn dirigents_profile_orders_only_the_first_sandbox_at_once() {
    let spec = check(&with("scaling.profile", json!("dirigent"))).unwrap();
    assert_eq!(spec.scaling, Scaling { on_demand: OnDemand::First, ..Scaling::default() });
    let mut all = with("scaling.profile", json!("dirigent"));
    all["scaling"]["on_demand"] = json!("all");
    assert_eq!(check(&all).unwrap().scaling, Scaling::default());
    let first = check(&with("scaling.on_demand", json!("first"))).unwrap();
    assert_eq!(first.scaling, spec.scaling);
}

#[test]
fn the_knative_profile_has_knatives_defaults() {
    let spec = check(&with("scaling.profile", json!("knative"))).unwrap();
    assert_eq!(spec.sizing.concurrency, 1_000);
    assert_eq!(spec.scaling.initial, 1);
    assert_eq!(spec.scaling.policy, ScalingPolicy::Kpa(Kpa { target: Some(100.0), ..Kpa::knative() }));
    let mut hard = with("scaling.profile", json!("knative"));
    hard["concurrency"] = json!(10);
    let spec = check(&hard).unwrap();
    assert_eq!(spec.scaling.policy, ScalingPolicy::Kpa(Kpa::knative()));
    assert_eq!(spec.sizing.concurrency, 10);
}

/// Every field has at least one bad input; each error names the field, what is allowed and what was given.
#[test]
fn bad_inputs_name_field_limit_and_value() {
    let long = "x".repeat(2_000);
    let many: serde_json::Map<_, _> = (0..257).map(|i| (format!("V{i}"), json!("x"))).collect();
    let cases: Vec<(&str, Value, &str, &str)> = vec![
        ("name", json!("Hello"), "a-z 0-9", "Hello"),
        ("name", json!(""), "1 to 63", "\"\""),
        ("name", json!(7), "string", "7"),
        ("runtime", json!("docker"), "process, fake", "docker"),
        ("runtime", json!("fake"), "\"process\"", "fake"),
        ("handler.file", json!("/etc/passwd"), "relative path", "/etc/passwd"),
        ("handler.file", json!("a/../../b.py"), "..", "a/../../b.py"),
        ("handler.file", json!(long), "1024 characters", "xxx"),
        ("handler.handler", json!("not a name"), "identifier", "not a name"),
        ("code", json!("a5"), "64 hexadecimal", "a5"),
        ("code", Value::Null, "64 hexadecimal", ""),
        ("env", json!(many), "256", "257"),
        ("env", json!({"A": "x".repeat(40_000)}), "32768", "40001"),
        ("env", json!({"A=B": "x"}), "`=`", "A=B"),
        ("env.PORT", json!("80"), "PORT", "platform"),
        ("env.FANFARE_TOKEN", json!("80"), "FANFARE_", "platform"),
        ("env.NUL", json!("a\0b"), "NUL", "NUL"),
        ("limits.memory_request", json!("1ZB"), "128MiB", "1ZB"),
        ("limits.memory_request", json!("2TiB"), "1 TiB", "2 TiB"),
        ("limits.memory_limit", json!(1024), "8 MiB", "1 KiB"),
        ("limits.memory_limit", json!(-1), "8 MiB to 1 TiB", "-1"),
        ("limits.memory_limit", json!("1PiB"), "8 MiB to 1 TiB", "1PiB"),
        ("limits.memory_request", json!(1e300), "0 B to 1 TiB", "1000"),
        ("limits.cpu_request", json!(2_000), "1024", "2000"),
        ("limits.cpu_request", json!("many"), "500m", "many"),
        ("limits.cpu_limit", json!(0.001), "0.01 to 1024", "0.001"),
        ("limits.cpu_limit", json!(-2), "0 to 1024 CPUs", "-2"),
        ("limits.pids", json!(1), "4 to 32768", "1"),
        ("limits.pids", json!(-4), "4 to 32768", "-4"),
        ("limits.tmp", json!(0), "64 KiB", "0"),
        ("limits.tmp", json!([]), "64 KiB to 64 GiB", "[]"),
        ("limits.tmp", json!("65GiB"), "64 GiB", "65 GiB"),
        ("concurrency", json!(0), "1 to 1000", "0"),
        ("concurrency", json!(1_001), "1 to 1000", "1001"),
        ("concurrency", json!(-1), "1 to 1000", "-1"),
        ("concurrency", json!(99_999_999_999_999_u64), "1 to 1000", "99999999999999"),
        ("concurrency", json!(1.5), "1 to 1000", "1.5"),
        ("concurrency", json!("x"), "1 to 1000", "x"),
        ("handler_processes", json!(2), "a divisor of concurrency 1", "2"),
        ("handler_processes", json!(0), "1 to 1000", "0"),
        ("timeouts.start", json!("2h"), "1 h", "2h"),
        ("timeouts.request", json!(0), "1 ms to 24 h", "0"),
        ("timeouts.request", json!("soon"), "1 ms to 24 h", "soon"),
        ("scaling.profile", json!("lambda"), "knative", "lambda"),
        ("scaling.policy", json!("magic"), "kpa", "magic"),
        ("scaling.on_demand", json!("never"), "first", "never"),
        ("scaling.count", json!(3), "policy fixed", "given"),
        ("scaling.min", json!(200_000), "0 to 100000", "200000"),
        ("scaling.max", json!(0), "1 to 100000", "0"),
        ("scaling.max", json!(-1), "1 to 100000", "-1"),
        ("scaling.initial", json!(100_001), "0 to 100000", "100001"),
        ("scaling.activation", json!(0), "1 to 100000", "0"),
        ("scaling.scale_down_delay", json!("2h"), "0 s to 1 h", "2h"),
        ("scaling.metric", json!("latency"), "rps", "latency"),
        ("scaling.target", json!(0), "0.01 to 1000000", "0"),
        ("scaling.target", json!("y"), "0.01 to 1000000", "y"),
        ("scaling.target_utilization", json!(1.5), "at most 1", "1.5"),
        ("scaling.target_utilization", json!({}), "above 0, at most 1", "{}"),
        ("scaling.stable_window", json!(0), "100 ms to 1 h", "0"),
        ("scaling.panic_window_share", json!(0), "above 0", "0"),
        ("scaling.panic_threshold", json!(0.5), "1 to 1000000", "0.5"),
        ("scaling.max_scale_up_rate", json!(0), "1 to", "0"),
        ("scaling.max_scale_down_rate", json!(0.9), "1 to", "0.9"),
        ("scaling.scale_to_zero_grace", json!(7_200), "0 s to 1 h", "7200"),
        ("scaling.tick", json!(0.001), "10 ms to 1 h", "0.001"),
        ("scaling.tolerance", json!(0.2), "policy hpa", "given"),
        ("scaling.stabilization_window", json!(1), "policy hpa", "given"),
        ("queue_limit", json!(0), "1 to 1000000", "0"),
        ("balance", json!("fair"), "least_loaded", "fair"),
        ("env.A", json!(1), "text, in quotes", "a number"),
        ("env", json!([]), "a table of names and texts", "a list"),
        ("timeouts.idle", json!("-1s"), "0 for none, or 1 ms to 24 h", "-1s"),
        ("name", json!("Foo Bar"), "1 to 63 characters", "Foo Bar"),
        ("name", json!("-a"), "a letter or a digit", "-a"),
        ("scaling.policy", json!("kap"), "kpa, hpa, fixed", "kap"),
        ("handler", json!(7), "a table with a kind: python", "7"),
        ("handler.kind", json!("pyhton"), "python, node, http, fake", "pyhton"),
        ("handler.file", json!(["a"]), "the path of a file", "a"),
        ("handler.command", json!(["x"]), "only with kind http", "given"),
        ("handler.surprise", json!(1), "there are kind, file, handler", "given"),
        ("surprise", json!(1), "unknown field", "1"),
        ("scaling.surprise", json!(1), "unknown field", "1"),
    ];
    for (path, value, limit, given) in cases {
        let error = check(&with(path, value.clone())).expect_err(&format!("{path} = {value}"));
        assert_eq!(error.field, path, "{error:?}");
        assert!(error.limit.contains(limit), "{path}: {error:?}");
        assert!(error.value.contains(given), "{path}: {error:?}");
        assert!(error.message.starts_with(path), "{path}: {error:?}");
        assert!(error.message.chars().count() <= 500, "{path}: {error:?}");
        for parsers in ["invalid type", "unknown variant", "expected", "`, `"] {
            assert!(!error.message.contains(parsers), "{path}: {error:?}");
        }
    }
}

#[test]
fn handlers_of_other_kinds() {
    let http = |command: Value| with("handler", json!({"kind": "http", "command": command}));
    check(&http(json!(["./server", "--fast"]))).unwrap();
    let bad = [
        (http(json!([])), "handler.command", "0 arguments"),
        (http(json!([""])), "handler.command", "\"\""),
        (http(json!(vec!["x"; 257])), "handler.command", "257 arguments"),
        (http(json!(["x", "a\0b"])), "handler.command", "a\\0b"),
        (http(json!(["x".repeat(40_000)])), "handler.command", "40000 bytes"),
        (http(json!("./server")), "handler.command", "./server"),
        (http(json!(["x", 1])), "handler.command", "[\"x\",1]"),
        (with("handler", json!({"kind": "http"})), "handler.command", ""),
        (
            with("handler", json!({"kind": "http", "command": ["x"], "protocol": "h3"})),
            "handler.protocol",
            "h3",
        ),
        (with("handler", json!({"kind": "cobol"})), "handler.kind", "cobol"),
        (with("handler", json!({"kind": "python"})), "handler.file", ""),
        (with("handler", json!({"file": "a.py"})), "handler.kind", ""),
        (with("handler", json!({"kind": "fake"})), "code", DIGEST),
    ];
    for (document, field, value) in bad {
        let error = check(&document).expect_err(&document.to_string());
        assert_eq!(error.field, field, "{error:?}");
        assert!(error.value.contains(value), "{error:?}");
    }
    let mut processes = http(json!(["x"]));
    processes["concurrency"] = json!(4);
    processes["handler_processes"] = json!(2);
    assert_eq!(check(&processes).unwrap_err().field, "handler_processes");
}

#[test]
fn policies_have_their_own_fields() {
    let scaling = |value: Value| with("scaling", value);
    let hpa = json!({"policy": "hpa", "target_utilization": 1.5, "tolerance": 0.2, "stabilization_window": "1m", "tick": 5});
    let expected = Hpa {
        target_utilization: 1.5,
        tolerance: 0.2,
        stabilization_window: Duration::from_secs(60),
        period: Duration::from_secs(5),
    };
    assert_eq!(check(&scaling(hpa)).unwrap().scaling.policy, ScalingPolicy::Hpa(expected));
    let fixed = check(&scaling(json!({"policy": "fixed", "count": 3}))).unwrap();
    assert_eq!(fixed.scaling.policy, ScalingPolicy::Fixed(3));
    let bad = [
        (json!({"policy": "fixed"}), "scaling.count"),
        (json!({"policy": "fixed", "count": 9, "max": 5}), "scaling.count"),
        (json!({"policy": "fixed", "count": 1, "tick": 1}), "scaling.tick"),
        (json!({"policy": "hpa", "metric": "rps"}), "scaling.metric"),
        (json!({"policy": "hpa", "tolerance": 2}), "scaling.tolerance"),
        (json!({"min": 3, "max": 2}), "scaling.min"),
        (json!({"initial": 3, "max": 2}), "scaling.initial"),
    ];
    for (document, field) in bad {
        assert_eq!(check(&scaling(document.clone())).unwrap_err().field, field, "{document}");
    }
}

#[test]
fn what_is_not_a_document_is_named_so() {
    for (body, value) in [("", "not a JSON object"), ("[]", "not a JSON object"), ("{", "not a JSON object")]
    {
        let error = FunctionDocument::from_json(body.as_bytes()).unwrap_err();
        assert_eq!(error.field, "body", "{body:?}");
        assert!(error.value.contains(value), "{body:?}: {error:?}");
    }
    for (body, kind) in [("[]", "an array"), ("7", "a number"), ("null", "null"), ("\"x\"", "a string")] {
        let error = FunctionDocument::from_json(body.as_bytes()).unwrap_err();
        assert_eq!(error.value, format!("not a JSON object ({kind})"), "{body}");
    }
    let error = FunctionDocument::from_json(br#"{"name": "a", "limits": 7}"#).unwrap_err();
    assert!(error.field == "limits" && error.limit == "a table", "{error:?}");
    let error = FunctionDocument::from_json(format!("{}x", hello()).as_bytes()).unwrap_err();
    assert_eq!(error.field, "body");
    let error = FunctionDocument::from_json(b"{\"name\": \"a\"}").unwrap_err();
    assert_eq!((error.field.as_str(), error.message.as_str()), ("handler", "handler is missing"));
}

#[test]
fn a_list_is_no_table() {
    for (field, list) in [
        ("timeouts", json!(["1s", "2s", "1s"])),
        ("limits", json!([null, null, null, null, null, null])),
        ("limits", json!([])),
        ("scaling", json!([])),
        ("handler", json!(["python", "m.py"])),
        ("secrets.x", json!(["s"])),
        ("secrets.x", json!(["s", null])),
        ("secrets", json!([])),
        ("files.x", json!(["text"])),
        ("files.x", json!("text")),
        ("files.x", json!({"text": "a", "base64": "AA=="})),
        ("files.x", json!({"text": 1})),
        ("env", json!([["a", "b"]])),
        ("env", json!([])),
    ] {
        let (table, name) = field.split_once('.').unwrap_or((field, ""));
        let value = if name.is_empty() { list } else { json!({ name: list }) };
        let mut document = hello();
        document[table] = value;
        let error = FunctionDocument::from_json(document.to_string().as_bytes()).unwrap_err();
        assert!(error.field.starts_with(field), "{field}: {error:?}");
        assert!(error.limit.contains("a table") || error.limit.contains("a map"), "{field}: {error:?}");
        assert!(!error.message.contains("variant"), "{field}: {error:?}");
    }
    for error in [
        crate::WebhookDocument::from_json(br#"["w","a","github","s",false,null]"#).unwrap_err(),
        crate::ScheduleDocument::from_json(br#"["c","a","* * * * *"]"#).unwrap_err(),
        crate::TrafficDocument::from_json(b"[]").unwrap_err(),
        crate::RollbackDocument::from_json(b"[]").unwrap_err(),
    ] {
        assert_eq!((&*error.field, &*error.value), ("body", "not a JSON object (an array)"));
    }
    let error = crate::TrafficDocument::from_json(br#"{"traffic":[["latest",100]]}"#).unwrap_err();
    assert_eq!(error.limit, "a table", "{error:?}");
}

#[test]
fn no_error_repeats_the_value_of_a_variable() {
    let canary = "canary-7f3a";
    let bad = [
        with("env", json!({"A": [canary]})),
        with("env", json!(canary)),
        with("env.A", json!({ "b": canary })),
        with("env", json!({"PORT": canary})),
        with("env", json!({"A": format!("{canary}\0")})),
        with("env", json!({"": canary})),
    ];
    for document in bad {
        let error = check(&document).unwrap_err();
        assert!(!format!("{error:?}").contains(canary), "{error:?}");
    }
    let document = FunctionDocument::from_json(with("env.A", json!(canary)).to_string().as_bytes()).unwrap();
    assert!(!format!("{document:?}").contains(canary));
}

#[test]
fn a_newer_store_is_refused_and_an_older_field_set_is_read() {
    let spec = check(&hello()).unwrap();
    let stored = String::from_utf8(encode_stored(&spec)).unwrap();
    assert_eq!(decode_stored(stored.as_bytes()).unwrap(), spec);
    let newer = stored.replacen("\"v\":1", "\"v\":2", 1);
    assert!(matches!(decode_stored(newer.as_bytes()), Err(crate::StoredError::Version(2))));
    assert!(matches!(decode_stored(b"{}"), Err(crate::StoredError::Malformed(_))));
    let minimal = json!({"v": 1, "function": hello()}).to_string();
    assert_eq!(decode_stored(minimal.as_bytes()).unwrap(), spec);
}
