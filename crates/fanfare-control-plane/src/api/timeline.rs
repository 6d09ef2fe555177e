//! A request's record in words: its stages, and what happened.

use std::time::Duration;

use fanfare_api::{RequestOutcome, RequestStageDocument};
use fanfare_types::{Reason, RequestEnd, RequestRecord, SlotRecord, SlotWhy, Stages};

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Where a request's time went. Those of a cold start end as its slot was given; where its sandbox was under way
/// already, they begin before the request. `room_after` is how long requests had waited for room as that was ordered.
pub(super) fn stages(record: &RequestRecord, room_after: Duration) -> Vec<RequestStageDocument> {
    let mut out = Vec::new();
    let mut add = |stage: &str, from_ms: f64, took: Duration, what: &str| {
        out.push(RequestStageDocument {
            stage: stage.to_owned(),
            from_ms,
            took_ms: ms(took),
            what: what.to_owned(),
        });
    };
    let Some(slot) = &record.slot else {
        add("queue", 0.0, record.ended_after, "waited for a slot and got none");
        return out;
    };
    match &slot.stages {
        Some(stages) => {
            let propagate = slot.after.saturating_sub(stages.total());
            let room = room_after.min(propagate);
            let propagate = propagate.saturating_sub(room);
            let mut from_ms = ms(slot.after) - ms(stages.total() + room + propagate);
            if !room.is_zero() {
                add("room", from_ms, room, "waited for room on a node");
                from_ms += ms(room);
            }
            for (name, took, what) in cold_stages(stages, propagate) {
                add(name, from_ms, took, what);
                from_ms += ms(took);
            }
        }
        None => add("queue", 0.0, slot.after, "waited for a slot"),
    }
    let answered = record.answered_after.unwrap_or(record.ended_after);
    let what = "in the sandbox, to the head of the answer";
    add("execute", ms(slot.after), answered.saturating_sub(slot.after), what);
    if record.answered_after.is_some() {
        let what = "the rest of the answer";
        add("answer", ms(answered), record.ended_after.saturating_sub(answered), what);
    }
    out
}

fn cold_stages(stages: &Stages, propagate: Duration) -> [(&'static str, Duration, &'static str); 7] {
    [
        ("decide", stages.decide, "control plane: from the word of need to the decision"),
        ("place", stages.place, "control plane: choosing the node"),
        ("transfer", stages.transfer, "the order to the node, and its word back"),
        ("create", stages.create, "node: code, template, cgroup and namespaces, up to the process"),
        ("start", stages.start, "node: from the process to user code"),
        ("ready", stages.ready, "node: from user code to accepting requests"),
        ("propagate", propagate, "word of need out, and the new slot back to the data plane"),
    ]
}

/// How it ended. What the platform answered in the function's place is told apart by whether the function had it.
pub(super) fn outcome(record: &RequestRecord) -> RequestOutcome {
    match (record.end, record.slot, record.reason) {
        (RequestEnd::Answered, ..) => RequestOutcome::Answered,
        (RequestEnd::Cut, ..) => RequestOutcome::Cut,
        (RequestEnd::ClientLeft, ..) => RequestOutcome::ClientLeft,
        (RequestEnd::Refused, None, _) => RequestOutcome::Refused,
        (RequestEnd::Refused, Some(_), reason) => match reason {
            Some(Reason::RequestTimeout | Reason::IdleTimeout) => RequestOutcome::TimedOut,
            Some(Reason::SandboxExited | Reason::OutOfMemory | Reason::NodeLost) => RequestOutcome::Crashed,
            Some(Reason::ConnectionClosed | Reason::BadResponse) => RequestOutcome::Failed,
            _ => RequestOutcome::Refused,
        },
    }
}

/// What happened, in a few sentences.
pub(super) fn summary(record: &RequestRecord) -> String {
    let mut sentences = vec![arrival(record)];
    sentences.extend(record.slot.as_ref().map(|slot| given(record, slot)));
    if record.attempts > 1 {
        let others = record.attempts - 1;
        sentences
            .push(format!("It was offered to {others} others before, which provably got nothing of it."));
    }
    sentences.push(ending(record));
    sentences.join(" ")
}

fn arrival(record: &RequestRecord) -> String {
    if record.function.is_none() {
        return "No function was found for it.".to_owned();
    }
    let warm = record.slot.is_some_and(|slot| slot.why == SlotWhy::Warm && record.attempts == 1);
    let free = if warm { "a slot was free" } else { "no slot was free for it" };
    format!(
        "As it arrived {free}; {} in sandboxes, {} waiting before it.",
        counted(record.in_flight),
        counted(record.ahead)
    )
}

fn given(record: &RequestRecord, slot: &SlotRecord) -> String {
    let after = seconds(slot.after);
    let (sandbox, node) = (slot.sandbox, slot.node);
    match slot.why {
        SlotWhy::Warm => format!(
            "It got a slot of sandbox {sandbox} ({node}, revision {}) at once, chosen by the policy {:?}.",
            slot.revision, record.balance
        ),
        SlotWhy::HandedOver => format!(
            "After {after} a request before it finished in sandbox {sandbox} ({node}, revision {}), and it was the one \
             that had waited longest.",
            slot.revision
        ),
        SlotWhy::Moved => format!(
            "After {after} a slot of sandbox {sandbox} ({node}, revision {}) came from another data plane.",
            slot.revision
        ),
        SlotWhy::Cold => format!(
            "After {after} a new sandbox {sandbox} ({node}, revision {}) was ready: a cold start.",
            slot.revision
        ),
    }
}

fn ending(record: &RequestRecord) -> String {
    let after = seconds(record.ended_after);
    let why = match (&record.reason, &*record.detail) {
        (Some(reason), "") => format!("{reason}"),
        (Some(reason), detail) => format!("{reason}: {detail}"),
        (None, _) => String::new(),
    };
    match record.end {
        RequestEnd::Answered if record.reason.is_some() => {
            format!("The function answered {} after {after}: {why}.", record.status)
        }
        RequestEnd::Answered => format!("The function answered {} after {after}.", record.status),
        RequestEnd::Refused if record.slot.is_some() => {
            format!(
                "The function gave no answer; the client was told {} after {after}: {why}.",
                record.status
            )
        }
        RequestEnd::Refused => format!("It was refused with {} after {after}: {why}.", record.status),
        RequestEnd::Cut => format!("The answer ({}) was cut after {after}: {why}.", record.status),
        RequestEnd::ClientLeft => format!("Its client left after {after}."),
    }
}

fn counted(requests: u32) -> String {
    match requests {
        1 => "1 request was".to_owned(),
        n => format!("{n} requests were"),
    }
}

fn seconds(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fanfare_types::{Balance, FunctionId, NodeId, SandboxId};

    use super::*;

    fn record(why: SlotWhy, stages: Option<Stages>) -> RequestRecord {
        RequestRecord {
            request_id: Arc::from("r"),
            age: Duration::from_secs(5),
            function: Some(FunctionId(1)),
            name: Arc::from("f"),
            ahead: 2,
            in_flight: 1,
            balance: Balance::Knative,
            attempts: 1,
            slot: Some(SlotRecord {
                sandbox: SandboxId(7),
                node: NodeId(1),
                revision: 3,
                why,
                after: Duration::from_millis(20),
                stages,
            }),
            answered_after: Some(Duration::from_millis(50)),
            ended_after: Duration::from_millis(60),
            end: RequestEnd::Answered,
            status: 200,
            reason: None,
            detail: Arc::from(""),
        }
    }

    fn each(of: u64) -> Stages {
        let stage = Duration::from_millis(of);
        Stages { decide: stage, place: stage, transfer: stage, create: stage, start: stage, ready: stage }
    }

    #[test]
    fn stages_follow_each_other_and_sum_to_the_whole() {
        for (stages_of, begins) in [(Some(each(2)), 0.0), (Some(each(10)), -40.0), (None, 0.0)] {
            let all = stages(&record(SlotWhy::Cold, stages_of), Duration::ZERO);
            let mut at = begins;
            for stage in &all {
                assert!((stage.from_ms - at).abs() < 1e-6, "{all:?}");
                at += stage.took_ms;
            }
            assert!((at - 60.0).abs() < 1e-6, "{all:?}");
        }
    }

    #[test]
    fn a_wait_for_room_is_no_ones_slowness() {
        let all = stages(&record(SlotWhy::Cold, Some(each(2))), Duration::from_millis(5));
        let took = |stage: &str| all.iter().find(|s| s.stage == stage).map(|s| (s.from_ms, s.took_ms));
        assert_eq!((took("room"), took("decide")), (Some((0.0, 5.0)), Some((5.0, 2.0))));
        assert_eq!(took("propagate"), Some((17.0, 3.0)));
        let longer = stages(&record(SlotWhy::Cold, Some(each(2))), Duration::from_millis(50));
        assert_eq!((longer[0].stage.as_str(), longer[0].took_ms), ("room", 8.0));
    }

    #[test]
    fn a_request_without_a_slot_only_waited() {
        let mut refused = RequestRecord { slot: None, answered_after: None, ..record(SlotWhy::Cold, None) };
        refused.end = RequestEnd::Refused;
        refused.status = 504;
        refused.reason = Some(Reason::QueueTimeout);
        let all = stages(&refused, Duration::ZERO);
        assert_eq!((all.len(), all[0].took_ms), (1, 60.0));
        assert!(summary(&refused).ends_with("It was refused with 504 after 60.0 ms: queue-timeout."));
    }

    #[test]
    fn what_the_platform_answered_is_told_apart_by_what_the_function_had() {
        use RequestEnd as End;
        use RequestOutcome as Outcome;
        let cases = [
            (End::Answered, true, None, Outcome::Answered),
            (End::Answered, true, Some(Reason::HandlerError), Outcome::Answered),
            (End::Cut, true, Some(Reason::RequestTimeout), Outcome::Cut),
            (End::ClientLeft, true, None, Outcome::ClientLeft),
            (End::Refused, false, Some(Reason::QueueFull), Outcome::Refused),
            (End::Refused, false, Some(Reason::QueueTimeout), Outcome::Refused),
            // Of its start.
            (End::Refused, false, Some(Reason::OutOfMemory), Outcome::Refused),
            (End::Refused, true, Some(Reason::RequestTimeout), Outcome::TimedOut),
            (End::Refused, true, Some(Reason::IdleTimeout), Outcome::TimedOut),
            (End::Refused, true, Some(Reason::SandboxExited), Outcome::Crashed),
            (End::Refused, true, Some(Reason::OutOfMemory), Outcome::Crashed),
            (End::Refused, true, Some(Reason::NodeLost), Outcome::Crashed),
            (End::Refused, true, Some(Reason::ConnectionClosed), Outcome::Failed),
            (End::Refused, true, Some(Reason::BadResponse), Outcome::Failed),
            (End::Refused, true, Some(Reason::TooLarge), Outcome::Refused),
        ];
        for (end, had, reason, expected) in cases {
            let record = record(SlotWhy::Warm, None);
            let slot = record.slot.filter(|_| had);
            assert_eq!(
                outcome(&RequestRecord { end, slot, reason, ..record }),
                expected,
                "{end:?} {reason:?}"
            );
        }
    }

    #[test]
    fn the_summary_says_why_this_slot_then() {
        let says = |why, words: &str| {
            let text = summary(&record(why, None));
            assert!(text.contains(words), "{text}");
        };
        says(SlotWhy::Warm, "a slot was free");
        says(SlotWhy::HandedOver, "a request before it finished");
        says(SlotWhy::Moved, "came from another data plane");
        says(SlotWhy::Cold, "a cold start");
    }
}
