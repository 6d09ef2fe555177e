//! Every message survives the wire; nothing that arrives can do harm.

mod any;

use fanfare_types::*;
use prop::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

use any::{from_data_plane, from_node, to_data_plane, to_node};

use super::*;

/// Through bytes and back; and no larger than the queue believes.
fn survives<M: Wire + Clone + PartialEq>(
    messages: Vec<M>,
    epoch: u64,
    seq: u64,
) -> Result<(), TestCaseError> {
    let weight: usize = messages.iter().map(Message::weight_bytes).sum();
    let batch = Batch { epoch: Epoch(epoch), seq, messages };
    let bytes = M::encode(batch.clone()).encode_to_vec();
    // 24: epoch and sequence number.
    prop_assert!(bytes.len() <= weight + 24, "{} bytes, but believed at most {}", bytes.len(), weight);
    let frame = M::Frame::decode(&bytes[..]).unwrap();
    prop_assert_eq!(M::decode(frame).unwrap(), batch);
    Ok(())
}

#[test]
fn a_secret_s_value_shows_in_no_message() {
    let values = vec![(SecretName::new("db").unwrap(), SecretValue::new(b"canary".to_vec()))];
    let message = ToNode::Secrets { revision: RevisionId::default(), values };
    let frame = ToNode::encode(Batch { epoch: Epoch(1), seq: 1, messages: vec![message.clone()] });
    let bytes = format!("{:?}", b"canary");
    for shown in [format!("{message:?}"), format!("{frame:?}"), format!("{frame:#?}")] {
        assert!(shown.contains("db") && !shown.contains("canary"), "{shown}");
        assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    }
}

/// Bytes that are almost a frame: decoding ends with a batch within its limits or with an error, never otherwise.
fn harmless<M: Wire>(mut bytes: Vec<u8>, edits: &[(prop::sample::Index, u8)]) {
    for (at, byte) in edits {
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
    }
    if let Ok(frame) = M::Frame::decode(&bytes[..])
        && let Ok(batch) = M::decode(frame)
    {
        assert!((1..=LINK_BATCH_MESSAGES_MAX).contains(&batch.messages.len()));
    }
}

fn bytes_of<M: Wire>(messages: Vec<M>) -> Vec<u8> {
    M::encode(Batch { epoch: Epoch(1), seq: 1, messages }).encode_to_vec()
}

proptest! {
    #[test]
    fn to_node_survives(messages in vec(to_node(), 1..20), epoch: u64, seq: u64) {
        survives(messages, epoch, seq)?;
    }

    #[test]
    fn from_node_survives(messages in vec(from_node(), 1..20), epoch: u64, seq: u64) {
        survives(messages, epoch, seq)?;
    }

    #[test]
    fn to_data_plane_survives(messages in vec(to_data_plane(), 1..20), epoch: u64, seq: u64) {
        survives(messages, epoch, seq)?;
    }

    #[test]
    fn from_data_plane_survives(messages in vec(from_data_plane(), 1..20), epoch: u64, seq: u64) {
        survives(messages, epoch, seq)?;
    }

    #[test]
    fn damaged_frames_do_no_harm(
        to_node in vec(to_node(), 1..5),
        from_node in vec(from_node(), 1..5),
        to_data_plane in vec(to_data_plane(), 1..5),
        from_data_plane in vec(from_data_plane(), 1..5),
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        harmless::<ToNode>(bytes_of(to_node), &edits);
        harmless::<FromNode>(bytes_of(from_node), &edits);
        harmless::<ToDataPlane>(bytes_of(to_data_plane), &edits);
        harmless::<FromDataPlane>(bytes_of(from_data_plane), &edits);
    }
}

#[test]
fn small_messages_are_small() {
    let revision = RevisionId { function: FunctionId(70_000), number: 3 };
    let creates = |waited| {
        let create = |n| ToNode::Create { sandbox: SandboxId::new(Epoch(2), n), revision, waited };
        (0..1_000).map(create).collect()
    };
    // 16 bytes each, and the frame around them.
    for waited in [false, true] {
        assert!(bytes_of::<ToNode>(creates(waited)).len() <= 16 * 1_000 + 16);
    }
    let released = (0..1_000)
        .map(|n| FromDataPlane::Released { sandbox: SandboxId::new(Epoch(2), n), slots: 1, retired: false })
        .collect();
    assert!(bytes_of::<FromDataPlane>(released).len() <= 10 * 1_000 + 16);
}

#[test]
fn frames_over_a_limit_or_without_a_message_are_refused() {
    let empty = proto::ToNodeFrame { epoch: 1, seq: 1, runs: Vec::new() };
    assert_eq!(ToNode::decode(empty).unwrap_err(), Malformed::Missing("a message"));

    let records = vec![0; 16 * (LINK_BATCH_MESSAGES_MAX + 1)];
    let run = proto::to_node_run::Run::Create(records.into());
    let many = proto::ToNodeFrame { epoch: 1, seq: 1, runs: vec![proto::ToNodeRun { run: Some(run) }] };
    assert!(matches!(ToNode::decode(many).unwrap_err(), Malformed::TooMany { what: "messages", .. }));

    let unknown = proto::ToNodeFrame { epoch: 1, seq: 1, runs: vec![proto::ToNodeRun { run: None }] };
    assert_eq!(ToNode::decode(unknown).unwrap_err(), Malformed::Missing("a message"));

    let run = proto::to_data_plane_run::Run::Unavailable(proto::Unavailable {
        reason: "no-such-reason".into(),
        ..Default::default()
    });
    let reason =
        proto::ToDataPlaneFrame { epoch: 1, seq: 1, runs: vec![proto::ToDataPlaneRun { run: Some(run) }] };
    assert_eq!(ToDataPlane::decode(reason).unwrap_err(), Malformed::Invalid("a reason's code"));
}

#[test]
fn long_log_lines_are_cut_at_a_character() {
    let record = crate::LogRecord {
        seq: 1,
        time_unix_ms: 2,
        sandbox: None,
        stream: crate::LogStream::Platform,
        text: "ä".repeat(TEXT_BYTES_MAX),
    };
    let back = log_from_wire(log_to_wire(record)).unwrap();
    assert_eq!(back.text.len(), TEXT_BYTES_MAX);
    assert!(back.text.chars().all(|c| c == 'ä'));
}
