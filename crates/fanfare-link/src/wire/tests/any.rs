//! Any message, and any part of one.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::*;
use prop::collection::vec;
use prop::option;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = Arc<str>> {
    ".{0,40}".prop_map(Arc::from)
}

fn name() -> impl Strategy<Value = FunctionName> {
    "[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?".prop_map(|name| FunctionName::new(&name).unwrap())
}

fn duration() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

fn sandbox() -> impl Strategy<Value = SandboxId> {
    any::<u64>().prop_map(SandboxId)
}

fn function() -> impl Strategy<Value = FunctionId> {
    any::<u32>().prop_map(FunctionId)
}

fn revision_id() -> impl Strategy<Value = RevisionId> {
    (function(), any::<u32>()).prop_map(|(function, number)| RevisionId { function, number })
}

fn resources() -> impl Strategy<Value = Resources> {
    (any::<u64>(), any::<u64>()).prop_map(|(cpu, memory)| Resources::new(cpu, memory))
}

fn stages() -> impl Strategy<Value = Stages> {
    [duration(), duration(), duration(), duration(), duration(), duration()].prop_map(
        |[decide, place, transfer, create, start, ready]| Stages {
            decide,
            place,
            transfer,
            create,
            start,
            ready,
        },
    )
}

fn exit() -> impl Strategy<Value = ExitCause> {
    prop_oneof![
        any::<i32>().prop_map(ExitCause::Status),
        any::<i32>().prop_map(ExitCause::Signal),
        Just(ExitCause::OutOfMemory),
        Just(ExitCause::Stopped),
        Just(ExitCause::NodeLost),
    ]
}

fn gone() -> impl Strategy<Value = GoneCause> {
    (exit(), text()).prop_map(|(exit, log_tail)| GoneCause { exit, log_tail })
}

fn failure() -> impl Strategy<Value = StartFailure> {
    let kind = prop_oneof![
        Just(StartFailureKind::Code),
        Just(StartFailureKind::HandlerNotFound),
        Just(StartFailureKind::ImportFailed),
        Just(StartFailureKind::InterpreterMissing),
        Just(StartFailureKind::DependenciesFailed),
        exit().prop_map(StartFailureKind::Exited),
        Just(StartFailureKind::Timeout),
        Just(StartFailureKind::NoNode),
        Just(StartFailureKind::RuntimeMissing),
        Just(StartFailureKind::NoRoom),
        Just(StartFailureKind::SecretMissing),
        Just(StartFailureKind::NotListening),
        Just(StartFailureKind::Unprepared),
        Just(StartFailureKind::Node),
    ];
    (kind, ".{0,40}", ".{0,40}").prop_map(|(kind, detail, log_tail)| StartFailure { kind, detail, log_tail })
}

fn amount() -> impl Strategy<Value = f64> {
    0.0..1e12_f64
}

fn load() -> impl Strategy<Value = FunctionLoad> {
    let counts = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    (function(), counts, amount(), amount(), option::of(amount())).prop_map(
        |(
            function,
            (in_flight, queued, idle_sandboxes, arrivals),
            concurrency_avg,
            interval_s,
            execution_s,
        )| {
            FunctionLoad {
                function,
                in_flight,
                queued,
                idle_sandboxes,
                concurrency_avg,
                arrivals,
                interval_s,
                execution_s,
            }
        },
    )
}

fn contract() -> impl Strategy<Value = Contract> {
    prop_oneof![
        (".{0,20}", ".{0,20}").prop_map(|(file, handler)| Contract::Python { file, handler }),
        (".{0,20}", ".{0,20}").prop_map(|(file, handler)| Contract::Node { file, handler }),
        (vec(".{0,20}", 0..5), any::<bool>(), any::<bool>()).prop_map(|(command, inherits_listener, h2c)| {
            let protocol = if h2c { Protocol::H2c } else { Protocol::Http1 };
            Contract::Http { command, inherits_listener, protocol }
        }),
        Just(Contract::Fake),
    ]
}

fn sizing() -> impl Strategy<Value = Sizing> {
    let numbers = (any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>());
    (resources(), resources(), numbers).prop_map(
        |(request, limit, (pids_limit, tmp_limit_bytes, concurrency, handler_processes))| Sizing {
            request,
            limit,
            pids_limit,
            tmp_limit_bytes,
            concurrency,
            handler_processes,
        },
    )
}

fn revision() -> impl Strategy<Value = RevisionSpec> {
    let code = option::of(any::<[u8; 32]>().prop_map(CodeDigest));
    let env = vec((".{0,10}", ".{0,20}"), 0..5);
    let timeouts = (duration(), duration(), idle());
    let timeouts = timeouts.prop_map(|(start, request, idle)| Timeouts { start, request, idle });
    (revision_id(), name(), text(), contract(), code, (env, given()), sizing(), timeouts).prop_map(
        |(id, name, runtime, contract, code, (env, given), sizing, timeouts)| RevisionSpec {
            id,
            name,
            runtime,
            contract,
            code,
            env,
            given,
            sizing,
            timeouts,
        },
    )
}

fn secret_name() -> impl Strategy<Value = SecretName> {
    name().prop_map(|name| SecretName::new(name.as_str()).unwrap())
}

fn given() -> impl Strategy<Value = Given> {
    let place = prop_oneof![".{0,40}".prop_map(SecretPlace::Env), ".{0,40}".prop_map(SecretPlace::File)];
    let used = (secret_name(), place).prop_map(|(secret, place)| SecretUse { secret, place });
    let file = (".{0,40}", vec(any::<u8>(), 0..100))
        .prop_map(|(path, content)| ConfigFile { path, content: content.into() });
    (vec(used, 0..5), vec(file, 0..5)).prop_map(|(secrets, files)| Given { secrets, files })
}

fn secret_values() -> impl Strategy<Value = Vec<(SecretName, SecretValue)>> {
    vec((secret_name(), vec(any::<u8>(), 0..200).prop_map(SecretValue::new)), 0..5)
}

fn idle() -> impl Strategy<Value = Option<Duration>> {
    duration().prop_map(|idle| Some(idle).filter(|idle| !idle.is_zero()))
}

fn route() -> impl Strategy<Value = FunctionRoute> {
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>());
    (function(), name(), (duration(), idle()), numbers, (balance_policy(), reach())).prop_map(
        |(id, name, (request_timeout, idle_timeout), numbers, (balance, reach))| {
            let (revision, concurrency, queue_limit) = numbers;
            FunctionRoute {
                id,
                revision,
                name,
                concurrency,
                request_timeout,
                idle_timeout,
                queue_limit,
                balance,
                reach,
            }
        },
    )
}

fn log_select() -> impl Strategy<Value = LogSelect> {
    let ages = (option::of(duration()), option::of(duration()));
    (option::of(any::<u64>()), option::of(sandbox()), ages)
        .prop_map(|(after, sandbox, (age_max, age_min))| LogSelect { after, sandbox, age_max, age_min })
}

fn reach() -> impl Strategy<Value = Reach> {
    let share = (function(), any::<u32>()).prop_map(|(unit, percent)| Share { unit, percent });
    let tag = ("[a-z]{1,8}(-[0-9a-z]{1,8})?", function())
        .prop_filter_map("a tag", |(tag, unit)| Some((Tag::new(&tag).ok()?, unit)));
    let traffic = (vec(share, 0..=limits::SHARES_MAX), vec(tag, 0..=limits::TAGS_MAX));
    prop_oneof![
        Just(Reach::Named),
        Just(Reach::Unit),
        traffic.prop_map(|(shares, tags)| Reach::Shared(Arc::new(Traffic { shares, tags }))),
    ]
}

pub(super) fn to_node() -> impl Strategy<Value = ToNode> {
    let mode = prop_oneof![Just(StopMode::Graceful), Just(StopMode::Kill), Just(StopMode::IfNotBegun)];
    prop_oneof![
        (any::<u32>(), any::<u64>())
            .prop_map(|(you, epoch)| ToNode::Welcome { you: NodeId(you), epoch: Epoch(epoch) }),
        revision().prop_map(|spec| ToNode::Revision(Arc::new(spec))),
        (revision_id(), secret_values()).prop_map(|(revision, values)| ToNode::Secrets { revision, values }),
        revision_id().prop_map(ToNode::RevisionRemoved),
        revision_id().prop_map(ToNode::Prepare),
        (sandbox(), revision_id(), any::<bool>()).prop_map(|(sandbox, revision, waited)| ToNode::Create {
            sandbox,
            revision,
            waited
        }),
        sandbox().prop_map(ToNode::Hasten),
        (sandbox(), mode).prop_map(|(sandbox, mode)| ToNode::Stop { sandbox, mode }),
        (any::<u64>(), function(), any::<u32>(), any::<bool>(), log_select()).prop_map(
            |(transfer, function, tail_lines, follow, select)| ToNode::Logs {
                transfer,
                function,
                tail_lines,
                follow,
                select,
            }
        ),
    ]
}

pub(super) fn from_node() -> impl Strategy<Value = FromNode> {
    let record = (sandbox(), revision_id(), option::of(text()))
        .prop_map(|(sandbox, revision, endpoint)| SandboxRecord { sandbox, revision, endpoint });
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    let hello = (text(), numbers, resources(), vec(text(), 0..4), vec(record, 0..10)).prop_map(
        |(name, (incarnation, epoch, logs), capacity, runtimes, sandboxes)| NodeHello {
            name,
            incarnation,
            epoch_seen: Epoch(epoch),
            capacity,
            runtimes,
            sandboxes,
            logs,
        },
    );
    let usage = (sandbox(), amount()).prop_map(|(sandbox, cpu_milli)| SandboxUsage { sandbox, cpu_milli });
    prop_oneof![
        hello.prop_map(FromNode::Hello),
        (sandbox(), text(), stages()).prop_map(|(sandbox, endpoint, stages)| FromNode::Ready {
            sandbox,
            endpoint,
            stages
        }),
        (sandbox(), failure()).prop_map(|(sandbox, failure)| FromNode::Failed { sandbox, failure }),
        (sandbox(), gone()).prop_map(|(sandbox, cause)| FromNode::Exited { sandbox, cause }),
        (revision_id(), option::of(failure()))
            .prop_map(|(revision, failure)| FromNode::Prepared { revision, failure }),
        vec(usage, 0..10).prop_map(FromNode::Usage),
        Just(FromNode::Left),
        Just(FromNode::Heartbeat),
    ]
}

pub(super) fn to_data_plane() -> impl Strategy<Value = ToDataPlane> {
    let data_plane = || any::<u32>().prop_map(DataPlaneId);
    let grant =
        (function(), any::<u32>(), sandbox(), any::<u32>(), text(), any::<u32>(), option::of(stages()))
            .prop_map(|(function, revision, sandbox, node, endpoint, slots, stages)| ToDataPlane::Grant {
                function,
                revision,
                sandbox,
                node: NodeId(node),
                endpoint,
                slots,
                stages,
            });
    let reason = prop::sample::select(Reason::ALL);
    prop_oneof![
        (data_plane(), any::<u64>())
            .prop_map(|(you, epoch)| ToDataPlane::Welcome { you, epoch: Epoch(epoch) }),
        (any::<u64>(), text()).prop_map(|(number, request_id)| ToDataPlane::Explain { number, request_id }),
        (any::<u64>(), entrusted())
            .prop_map(|(number, call)| ToDataPlane::Entrust { number, call: Arc::new(call) }),
        webhook().prop_map(|route| ToDataPlane::Webhook(Arc::new(route))),
        name().prop_map(ToDataPlane::WebhookRemoved),
        Just(ToDataPlane::WebhooksSynced),
        vec(route(), 0..10).prop_map(ToDataPlane::Functions),
        function().prop_map(ToDataPlane::FunctionRemoved),
        Just(ToDataPlane::Synced),
        any::<u64>().prop_map(ToDataPlane::Mark),
        vec((data_plane(), text()), 0..5).prop_map(ToDataPlane::Peers),
        vec((function(), option::of(data_plane())), 0..5).prop_map(ToDataPlane::Owners),
        grant,
        (sandbox(), any::<u32>()).prop_map(|(sandbox, slots)| ToDataPlane::Revoke { sandbox, slots }),
        (function(), any::<u32>()).prop_map(|(function, slots)| ToDataPlane::Yield { function, slots }),
        (function(), any::<u32>())
            .prop_map(|(function, sandboxes)| ToDataPlane::Retire { function, sandboxes }),
        (sandbox(), gone()).prop_map(|(sandbox, cause)| ToDataPlane::Gone { sandbox, cause }),
        (function(), reason, text(), text()).prop_map(|(function, reason, detail, log_tail)| {
            ToDataPlane::Unavailable { function, reason, detail, log_tail }
        }),
    ]
}

fn entrusted() -> impl Strategy<Value = EntrustedCall> {
    let texts = (name(), text(), text(), text());
    let settings = (any::<bool>(), option::of(any::<u32>()), option::of(duration()), any::<bool>());
    (texts, vec((text(), text()), 0..5), vec(any::<u8>(), 0..200), settings).prop_map(
        |((function, method, target, key), headers, body, settings)| {
            let (at_most_once, attempts_max, age_max, only_if_known) = settings;
            EntrustedCall {
                function,
                method,
                target,
                headers,
                body: body.into(),
                at_most_once,
                attempts_max,
                age_max,
                key,
                only_if_known,
            }
        },
    )
}

fn webhook() -> impl Strategy<Value = WebhookRoute> {
    let key = option::of(vec(any::<u8>(), 0..100).prop_map(SecretValue::new));
    let scheme = prop::sample::select(&WebhookScheme::ALL[..]);
    (name(), name(), name(), scheme, any::<bool>(), duration(), key).prop_map(
        |(name, function, secret, scheme, wait, tolerance, key)| {
            let secret = SecretName::new(secret.as_str()).unwrap();
            let spec = WebhookSpec { name, function, scheme, secret, wait, tolerance };
            WebhookRoute { spec: Arc::new(spec), key }
        },
    )
}

fn entrust_outcome() -> impl Strategy<Value = Result<Arc<str>, EntrustRefusal>> {
    let reason = prop::sample::select(Reason::ALL);
    prop_oneof![
        text().prop_map(Ok),
        (reason, text()).prop_map(|(reason, detail)| Err(EntrustRefusal { reason, detail })),
    ]
}

fn balance_policy() -> impl Strategy<Value = Balance> {
    prop_oneof![
        Just(Balance::Knative),
        Just(Balance::LeastLoaded),
        Just(Balance::RoundRobin),
        Just(Balance::Random),
        Just(Balance::ChRlu),
        Just(Balance::Hermod),
    ]
}

fn request_record() -> impl Strategy<Value = RequestRecord> {
    let why = prop::sample::select(&SlotWhy::ALL[..]);
    let slot = (sandbox(), any::<u32>(), any::<u32>(), why, duration(), option::of(stages())).prop_map(
        |(sandbox, node, revision, why, after, stages)| SlotRecord {
            sandbox,
            node: NodeId(node),
            revision,
            why,
            after,
            stages,
        },
    );
    let texts = (text(), text(), text());
    let counts = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u16>());
    let times = (duration(), option::of(duration()), duration());
    let end = prop::sample::select(&RequestEnd::ALL[..]);
    let reason = option::of(prop::sample::select(Reason::ALL));
    (texts, counts, times, option::of(function()), option::of(slot), end, reason, balance_policy()).prop_map(
        |(texts, counts, times, function, slot, end, reason, balance)| RequestRecord {
            request_id: texts.0,
            age: times.0,
            function,
            name: texts.1,
            ahead: counts.0,
            in_flight: counts.1,
            balance,
            attempts: counts.2,
            slot,
            answered_after: times.1,
            ended_after: times.2,
            end,
            status: counts.3,
            reason,
            detail: texts.2,
        },
    )
}

pub(super) fn from_data_plane() -> impl Strategy<Value = FromDataPlane> {
    let lease = (sandbox(), any::<u32>()).prop_map(|(sandbox, slots)| HeldLease { sandbox, slots });
    let hello = (text(), text(), any::<u64>(), any::<u64>(), vec(lease, 0..10), vec(sandbox(), 0..10))
        .prop_map(|(name, address, incarnation, epoch, leases, condemned)| DataPlaneHello {
            name,
            address,
            incarnation,
            epoch_seen: Epoch(epoch),
            leases,
            condemned,
        });
    let reason = prop::sample::select(Reason::ALL);
    let failed = (any::<u32>().prop_map(FunctionId), reason, any::<u32>(), text(), text(), text()).prop_map(
        |(function, reason, count, detail, request_id, log_tail)| RequestFailures {
            function,
            reason,
            count,
            detail,
            request_id,
            log_tail,
        },
    );
    let why = prop_oneof![Just(Condemned::Timeout), Just(Condemned::Abandoned), Just(Condemned::Broken)];
    prop_oneof![
        hello.prop_map(FromDataPlane::Hello),
        load().prop_map(FromDataPlane::Demand),
        vec(load(), 0..10).prop_map(FromDataPlane::Report),
        (sandbox(), any::<u32>(), any::<bool>())
            .prop_map(|(sandbox, slots, retired)| FromDataPlane::Released { sandbox, slots, retired }),
        (sandbox(), why).prop_map(|(sandbox, why)| FromDataPlane::Condemned { sandbox, why }),
        failed.prop_map(FromDataPlane::Failed),
        (any::<u64>(), vec(request_record(), 0..4), option::of(duration()))
            .prop_map(|(number, records, kept)| FromDataPlane::Explained { number, records, kept }),
        (any::<u64>(), entrust_outcome())
            .prop_map(|(number, outcome)| FromDataPlane::Entrusted { number, outcome }),
        Just(FromDataPlane::Draining),
        Just(FromDataPlane::Left),
        Just(FromDataPlane::Heartbeat),
        any::<u64>().prop_map(FromDataPlane::Reached),
    ]
}
