use std::time::Duration;

use fanfare_types::{Contract, FunctionSpec, Kpa, Protocol, ScalingPolicy, limits};
use proptest::prelude::*;

use super::form::Form;
use super::*;
use crate::{EnvDocument, FieldError, FunctionDocument, HandlerDocument, ProtocolName, Quantity};

/// As InVitro registers a function of its sweeps of cold starts, and as its current version does.
const SWEEP: &str = "cold_start_sweep=true&image=docker.io%2Fcvetkovic%2Fdirigent_empty_function%3Alatest\
    &name=cold-function-7-5577006791947779410&port_forwarding=80&port_forwarding=tcp&requested_cpu=1000\
    &requested_memory=2048&scaling_lower_bound=0&scaling_upper_bound=1";
const CURRENT: &str = "cold_start_busy_loop_ms=12&env_vars=A%3D1%3D2&env_vars=B%3D&image=i&iteration_multiplier=102\
    &name=trace-func-0-8674665223082153551&node_affinity=&node_port=0&num_args=0&num_rets=0&port_forwarding=80\
    &port_forwarding=tcp&prepull_mode=&program_args=-v&program_args=x+y&requested_cpu=0&requested_gpu=0\
    &requested_memory=12&scaling_lower_bound=1&scaling_upper_bound=1024&some_field_of_tomorrow=%20";

fn image() -> FunctionDocument {
    let command = vec!["./server".to_owned()];
    let handler = HandlerDocument::Http { command, inherits_listener: true, protocol: ProtocolName::H2c };
    FunctionDocument { code: Some("a5".repeat(32)), ..FunctionDocument::new("of-the-image", handler) }
}

fn registered(form: &str) -> Result<FunctionSpec, FieldError> {
    DirigentRegistration::from_form(form.as_bytes())?.function(&image())
}

fn kpa(spec: &FunctionSpec) -> &Kpa {
    match &spec.scaling.policy {
        ScalingPolicy::Kpa(kpa) => kpa,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_invitro_sends_is_a_function() {
    let form = DirigentRegistration::from_form(SWEEP.as_bytes()).unwrap();
    assert_eq!(form.image, "docker.io/cvetkovic/dirigent_empty_function:latest");
    let spec = registered(SWEEP).unwrap();
    assert_eq!(spec.name.as_str(), "cold-function-7-5577006791947779410");
    assert_eq!((spec.scaling.min, spec.scaling.max), (0, 1));
    assert_eq!((spec.sizing.request.cpu_milli, spec.sizing.request.memory_bytes), (1_000, 2_048 << 20));
    assert_eq!(spec.sizing.limit.memory_bytes, 2_048 << 20, "what is reserved may be used");
    assert_eq!(
        (kpa(&spec).stable_window, kpa(&spec).panic_window()),
        (Duration::from_secs(6), Duration::from_secs(2))
    );
    assert_eq!(spec.timeouts.request, Duration::from_secs(900));

    let spec = registered(CURRENT).unwrap();
    let expected = Contract::Http {
        command: vec!["./server".to_owned(), "-v".to_owned(), "x y".to_owned()],
        inherits_listener: true,
        protocol: Protocol::H2c,
    };
    assert_eq!(spec.contract, expected);
    let env = [("A", "1=2"), ("B", ""), ("ITERATIONS_MULTIPLIER", "102"), ("COLD_START_BUSY_LOOP_MS", "12")];
    assert_eq!(spec.env, env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!((spec.scaling.min, spec.scaling.max), (1, 1_024));
    assert_eq!(spec.sizing.request.cpu_milli, limits::CPU_REQUEST_DEFAULT_MILLI, "0 is nothing said");
    assert_eq!(kpa(&spec), &Kpa::default());
}

#[test]
fn what_a_form_does_not_say_is_the_image_s() {
    let mut image = image();
    image.env = EnvDocument(vec![("A".to_owned(), "image".to_owned()), ("C".to_owned(), "c".to_owned())]);
    image.scaling.max = Some(7);
    image.limits.memory_limit = Some(Quantity::from("64MiB"));
    image.timeouts.request = Some(Quantity::Integer(5));
    let of = |form: &str| DirigentRegistration::from_form(form.as_bytes()).unwrap().function(&image).unwrap();
    let spec =
        of("name=f&image=i&env_vars=A%3Dform&requested_memory=32&scaling_upper_bound=0&scaling_upper_bound=");
    assert_eq!(spec.env, [("A".to_owned(), "form".to_owned()), ("C".to_owned(), "c".to_owned())]);
    assert_eq!((spec.scaling.max, spec.timeouts.request), (7, Duration::from_secs(5)));
    assert_eq!((spec.sizing.request.memory_bytes, spec.sizing.limit.memory_bytes), (32 << 20, 64 << 20));
    assert_eq!(of("name=f&image=i&requested_memory=96").sizing.limit.memory_bytes, 96 << 20);
}

#[test]
fn a_form_that_is_wrong_is_refused_by_field() {
    let cases = [
        ("", "name"),
        ("name=f", "image"),
        ("name=f&image=", "image"),
        ("name=F&image=i", "name"),
        ("name=f&image=i&scaling_upper_bound=-1", "scaling_upper_bound"),
        ("name=f&image=i&scaling_lower_bound=two", "scaling_lower_bound"),
        ("name=f&image=i&scaling_lower_bound=2&scaling_upper_bound=1", "scaling.min"),
        ("name=f&image=i&requested_memory=99999999999999999999", "requested_memory"),
        ("name=f&image=i&requested_memory=18446744073709551615", "requested_memory"),
        ("name=f&image=i&requested_memory=99999999", "limits.memory_request"),
        ("name=f&image=i&requested_cpu=1.5", "requested_cpu"),
        ("name=f&image=i&requested_gpu=1", "requested_gpu"),
        ("name=f&image=i&cold_start_sweep=perhaps", "cold_start_sweep"),
        ("name=f&image=i&prepull_mode=some", "prepull_mode"),
        ("name=f&image=i&port_forwarding=tcp", "port_forwarding"),
        ("name=f&image=i&port_forwarding=80&port_forwarding=udp", "port_forwarding"),
        ("name=f&image=i&env_vars=SECRET", "env_vars"),
        ("name=f&image=i&env_vars=PORT%3D80", "env.PORT"),
        ("name=f%FF&image=i", "body"),
        ("name=f&name=g&image=i", "name"),
        ("name=f&image=i&image=i", "image"),
        ("name=f&image=i&requested_cpu=1&requested_cpu=2", "requested_cpu"),
    ];
    for (form, field) in cases {
        let error = registered(form).expect_err(form);
        assert_eq!(error.field, field, "{form}: {error}");
        assert!(!error.message.contains("SECRET"), "{error}");
    }
    let many = "a=b&".repeat(limits::FORM_FIELDS_MAX + 1);
    assert_eq!(registered(&many).unwrap_err().field, "body");
    let long = format!("name=f&image={}", "i".repeat(limits::IMAGE_NAME_LEN_MAX + 1));
    assert_eq!(registered(&long).unwrap_err().field, "image");
    let python = HandlerDocument::Python { file: "a.py".to_owned(), handler: "handler".to_owned() };
    let image = FunctionDocument { handler: python, ..image() };
    let arguments = DirigentRegistration::from_form(b"name=f&image=i&program_args=x").unwrap();
    assert_eq!(arguments.function(&image).unwrap_err().field, "program_args");
}

fn patched(form: &str) -> Result<FunctionSpec, FieldError> {
    let before = registered("name=f&image=i&scaling_upper_bound=9")?;
    let mut document = FunctionDocument::from(&before);
    let patch = DirigentPatch::from_form(form.as_bytes())?;
    assert_eq!(patch.function, "f");
    patch.apply(&mut document)?;
    FunctionSpec::try_from(document)
}

#[test]
fn a_patch_changes_what_it_names() {
    let before =
        patched("function=f&target_burst_capacity=3&total_value=1&scaling_method=arithmetic&x=y").unwrap();
    assert_eq!(
        before,
        registered("name=f&image=i&scaling_upper_bound=9").unwrap(),
        "nothing that means anything here"
    );
    let sweep = patched("function=f&stable_window_width=6&panic_window_width=2").unwrap();
    assert_eq!(
        (kpa(&sweep).stable_window, kpa(&sweep).panic_window()),
        (Duration::from_secs(6), Duration::from_secs(2))
    );
    assert_eq!(sweep.scaling.max, 9);
    let all = patched(
        "function=f&scaling_upper_bound=0&scaling_lower_bound=2&panic_threshold_percentage=150&max_scale_up_rate=10\
         &max_scale_down_rate=3&container_concurrency=4&container_concurrency_target_percentage=70\
         &scaling_period=0.5&initial_scale=1&scale_down_delay=1.5",
    );
    let all = all.unwrap();
    let kpa = kpa(&all);
    assert_eq!((all.scaling.min, all.scaling.max, all.scaling.initial), (2, limits::SCALE_MAX, 1));
    assert_eq!((kpa.panic_threshold, kpa.max_scale_up_rate, kpa.max_scale_down_rate), (1.5, 10.0, 3.0));
    assert_eq!((kpa.target_utilization, kpa.tick), (0.7, Duration::from_millis(500)));
    assert_eq!((all.sizing.concurrency, all.scaling.scale_down_delay), (4, Duration::from_millis(1_500)));
    assert_eq!(
        patched("function=f&container_concurrency=0").unwrap().sizing.concurrency,
        limits::CONCURRENCY_MAX
    );

    let cases = [
        ("function=", "function"),
        ("function=f&stable_window_width=-6", "stable_window_width"),
        ("function=f&stable_window_width=nan", "stable_window_width"),
        ("function=f&stable_window_width=0", "scaling.stable_window"),
        ("function=f&panic_window_width=61", "panic_window_width"),
        ("function=f&stable_window_width=0&panic_window_width=0", "panic_window_width"),
        ("function=f&panic_threshold_percentage=10", "scaling.panic_threshold"),
        ("function=f&scaling_method=exponential", "scaling_method"),
    ];
    for (form, field) in cases {
        let error = patched(form).expect_err(form);
        assert_eq!(error.field, field, "{form}: {error}");
    }
}

proptest! {
    #[test]
    fn fields_arrive_as_they_were_sent(pairs in prop::collection::vec((any::<String>(), any::<String>()), 0..40)) {
        let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(&pairs).finish();
        let read = Form::parse(text.as_bytes());
        if pairs.iter().any(|(name, value)| format!("{name}{value}").contains(char::REPLACEMENT_CHARACTER)) {
            prop_assert_eq!(read.unwrap_err().field, "body");
        } else {
            let form = read.unwrap();
            for (name, _) in &pairs {
                let sent: Vec<&str> = pairs.iter().filter(|(n, v)| n == name && !v.is_empty()).map(|(_, v)| &**v).collect();
                prop_assert_eq!(form.all(name).collect::<Vec<_>>(), sent);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_function_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let image = image();
        if let Ok(registration) = DirigentRegistration::from_form(&bytes)
            && let Ok(spec) = registration.function(&image)
        {
            prop_assert_eq!(spec.name.as_str(), &registration.name);
        }
        if let Ok(patch) = DirigentPatch::from_form(&bytes) {
            let mut document = image;
            let _ = patch.apply(&mut document);
        }
    }
}
