//! Specifications of every kind, and bytes of none.

use super::*;
use fanfare_types::{ConfigFile, Given, SecretName, SecretPlace, SecretUse};
use fanfare_types::{Hpa, Kpa, Metric, OnDemand, Protocol, Scaling, ScalingPolicy};
use proptest::prelude::*;

fn contracts() -> impl Strategy<Value = Contract> {
    let file = "[a-z]{1,8}(/[a-z]{1,8}){0,2}\\.py";
    prop_oneof![
        (file, "[a-zA-Z_][a-z0-9_]{0,9}").prop_map(|(file, handler)| Contract::Python { file, handler }),
        (file, "[a-zA-Z_$][a-z0-9_$]{0,9}").prop_map(|(file, handler)| Contract::Node { file, handler }),
        (proptest::collection::vec("[^\\x00]{1,20}", 1..5), any::<bool>(), any::<bool>()).prop_map(
            |(command, inherits_listener, h2c)| {
                let protocol = if h2c { Protocol::H2c } else { Protocol::Http1 };
                Contract::Http { command, inherits_listener, protocol }
            }
        ),
        Just(Contract::Fake),
    ]
}

fn nanos(min: Duration, max: Duration) -> impl Strategy<Value = Duration> {
    (min.as_nanos() as u64..=max.as_nanos() as u64).prop_map(Duration::from_nanos)
}

fn windows() -> impl Strategy<Value = Duration> {
    nanos(limits::SCALING_WINDOW_MIN, limits::SCALING_WINDOW_MAX)
}

fn policies() -> impl Strategy<Value = ScalingPolicy> {
    let rates = (0.001..=1.0, 1.0..1e6, 1.0..1e6, 1.0..1e6);
    let kpa =
        (any::<bool>(), proptest::option::of(0.01..1e6), 0.001..=1.0, windows(), rates, windows(), windows());
    let hpa = (0.01..100.0, 0.0..=1.0, windows(), windows());
    prop_oneof![
        kpa.prop_map(|(concurrency, target, target_utilization, stable_window, rates, grace, tick)| {
            ScalingPolicy::Kpa(Kpa {
                metric: if concurrency { Metric::Concurrency } else { Metric::RequestsPerSecond },
                target,
                target_utilization,
                stable_window,
                panic_window_share: rates.0,
                panic_threshold: rates.1,
                max_scale_up_rate: rates.2,
                max_scale_down_rate: rates.3,
                scale_to_zero_grace: grace,
                tick,
            })
        }),
        hpa.prop_map(|(target_utilization, tolerance, stabilization_window, period)| {
            ScalingPolicy::Hpa(Hpa { target_utilization, tolerance, stabilization_window, period })
        }),
        (0..=limits::SCALE_MAX).prop_map(ScalingPolicy::Fixed),
    ]
}

fn scalings() -> impl Strategy<Value = Scaling> {
    let delay = nanos(Duration::ZERO, limits::SCALING_WINDOW_MAX);
    let given = (policies(), 1..=limits::SCALE_MAX, any::<[u32; 3]>(), delay, any::<bool>());
    given.prop_map(|(policy, max, below, delay, first)| {
        let up_to = |n: u32, max: u32| n % (max + 1);
        let min = up_to(below[0], max);
        let policy = match policy {
            ScalingPolicy::Fixed(count) => ScalingPolicy::Fixed(count.clamp(min, max)),
            other => other,
        };
        let (initial, activation) = (up_to(below[1], max), up_to(below[2], max).max(1));
        let on_demand = if first { OnDemand::First } else { OnDemand::All };
        Scaling { policy, min, max, initial, activation, scale_down_delay: delay, on_demand }
    })
}

fn sizings() -> impl Strategy<Value = Sizing> {
    let memory = limits::MEMORY_LIMIT_MIN_BYTES..=limits::MEMORY_LIMIT_MAX_BYTES;
    let cpu = prop_oneof![Just(0), limits::CPU_LIMIT_MIN_MILLI..=limits::CPU_MAX_MILLI];
    let tmp = limits::TMP_LIMIT_MIN_BYTES..=limits::TMP_LIMIT_MAX_BYTES;
    let pids = limits::PIDS_LIMIT_MIN..=limits::PIDS_LIMIT_MAX;
    (memory, cpu, any::<[u64; 2]>(), pids, tmp, 1..=10u32, 1..=100u32).prop_map(
        |(memory, cpu, below, pids_limit, tmp_limit_bytes, handler_processes, slots)| Sizing {
            request: Resources::new(
                below[0] % (if cpu == 0 { limits::CPU_MAX_MILLI } else { cpu } + 1),
                below[1] % (memory + 1),
            ),
            limit: Resources::new(cpu, memory),
            pids_limit,
            tmp_limit_bytes,
            concurrency: handler_processes * slots,
            handler_processes,
        },
    )
}

fn specs() -> impl Strategy<Value = FunctionSpec> {
    let env = proptest::collection::btree_map("[A-EG-OQ-Z_][A-Z0-9_]{0,8}", "[^\\x00]{0,16}", 0..5);
    let timeouts = (
        nanos(limits::TIMEOUT_MIN, limits::START_TIMEOUT_MAX),
        nanos(limits::TIMEOUT_MIN, limits::REQUEST_TIMEOUT_MAX),
        proptest::option::of(nanos(limits::TIMEOUT_MIN, limits::REQUEST_TIMEOUT_MAX)),
    );
    let balances = prop_oneof![
        Just(Balance::Knative),
        Just(Balance::LeastLoaded),
        Just(Balance::RoundRobin),
        Just(Balance::Random),
        Just(Balance::ChRlu),
        Just(Balance::Hermod),
    ];
    let queue = 1..=limits::QUEUE_LIMIT_MAX;
    let parts =
        (contracts(), any::<[u8; 32]>(), (env, givens()), sizings(), timeouts, scalings(), queue, balances);
    ("[a-z][a-z0-9]{0,20}", parts).prop_map(|(name, parts)| {
        let (
            contract,
            digest,
            (env, given),
            mut sizing,
            (start, request, idle),
            scaling,
            queue_limit,
            balance,
        ) = parts;
        if !matches!(contract, Contract::Python { .. } | Contract::Node { .. }) {
            sizing.handler_processes = 1;
        }
        let fake = contract == Contract::Fake;
        FunctionSpec {
            name: FunctionName::new(&name).unwrap(),
            runtime: if fake { "fake" } else { "process" }.into(),
            contract,
            code: (!fake).then_some(CodeDigest(digest)),
            env: env.into_iter().rev().collect(),
            given,
            sizing,
            timeouts: Timeouts { start, request, idle },
            scaling,
            queue_limit,
            balance,
        }
    })
}

/// Files and secrets in the order in which they are kept. Their names are none of a variable.
fn givens() -> impl Strategy<Value = Given> {
    let place = |name: String, env| if env { SecretPlace::Env(name) } else { SecretPlace::File(name) };
    let secrets = proptest::collection::btree_map(
        "s[A-Za-z0-9_.-]{0,20}",
        ("[a-z][a-z0-9.-]{0,20}[a-z0-9]", any::<bool>()),
        0..5,
    );
    let secrets = secrets.prop_map(move |secrets| {
        let used = |(name, (secret, env)): (String, (String, bool))| SecretUse {
            secret: SecretName::new(&secret).unwrap(),
            place: place(name, env),
        };
        secrets.into_iter().map(used).collect()
    });
    let content =
        prop_oneof![proptest::collection::vec(any::<u8>(), 0..200), ".{0,60}".prop_map(String::into_bytes)];
    let files = proptest::collection::btree_map("[a-z][a-z0-9_.-]{0,10}", content, 0..5).prop_map(|files| {
        let file = |(path, content): (String, Vec<u8>)| ConfigFile { path, content: content.into() };
        files.into_iter().map(file).collect()
    });
    (secrets, files).prop_map(|(secrets, files)| Given { secrets, files })
}

proptest! {
    /// To a document, to JSON, and back is the same specification; so is the stored form.
    #[test]
    fn specifications_round_trip(spec in specs()) {
        let json = serde_json::to_vec(&FunctionDocument::from(&spec)).unwrap();
        let back = FunctionSpec::try_from(FunctionDocument::from_json(&json).unwrap());
        prop_assert_eq!(back, Ok(spec.clone()));
        prop_assert_eq!(decode_stored(&encode_stored(&spec)).unwrap(), spec);
    }

    /// Whatever the bytes, an answer; and no error longer than a screen line or three.
    #[test]
    fn no_document_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = FunctionDocument::from_json(&body) {
            prop_assert!(error.value.chars().count() <= 121);
        }
    }
}
