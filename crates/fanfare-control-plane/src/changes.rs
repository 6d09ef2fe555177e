//! One log line for each change of state: of functions, revisions, sandboxes and data planes. What happens with every
//! sandbox of a surge is at debug level, what somebody did or must know at info. Nodes and streams are told of where
//! they connect and are lost.

use fanfare_engine::{Command, Event};
use fanfare_types::{ExitCause, FromDataPlane, FromNode, ToNode};

/// Something happened to the engine's world.
pub(crate) fn told(event: &Event) {
    match event {
        Event::FunctionSet { id, spec } => {
            tracing::info!(function = %spec.name, id = %id.function, revision = id.number, "revision registered");
        }
        Event::FunctionKept { id, spec } => {
            tracing::debug!(function = %spec.name, id = %id.function, revision = id.number, "revision kept");
        }
        Event::FunctionRemoved(id) => tracing::info!(%id, "function deleted"),
        Event::PrepareRequested { id, .. } => tracing::debug!(revision = %id, "revision to be prepared"),
        Event::FromNode { node, message } => of_node(*node, message),
        Event::FromDataPlane { data_plane, message, .. } => match message {
            FromDataPlane::Condemned { sandbox, why } => {
                tracing::info!(%sandbox, %data_plane, ?why, "sandbox condemned");
            }
            FromDataPlane::Released { sandbox, slots, retired: true } => {
                tracing::debug!(%sandbox, %data_plane, slots, "sandbox given back");
            }
            FromDataPlane::Draining => tracing::info!(%data_plane, "data plane drains"),
            _ => {}
        },
        _ => {}
    }
}

fn of_node(node: fanfare_types::NodeId, message: &FromNode) {
    match message {
        FromNode::Ready { sandbox, stages, .. } => {
            tracing::debug!(%sandbox, %node, took = ?stages.on_node(), "sandbox ready");
        }
        FromNode::Failed { sandbox, failure } => {
            tracing::info!(%sandbox, %node, kind = ?failure.kind, detail = failure.detail, "sandbox failed to start");
        }
        FromNode::Exited { sandbox, cause } if cause.exit == ExitCause::Stopped => {
            tracing::debug!(%sandbox, %node, "sandbox stopped");
        }
        FromNode::Exited { sandbox, cause } => {
            tracing::info!(%sandbox, %node, cause = %cause.exit, "sandbox ended");
        }
        FromNode::Prepared { revision, failure: None } => {
            tracing::info!(%revision, %node, "revision proved to start");
        }
        FromNode::Prepared { revision, failure: Some(failure) } => {
            tracing::info!(%revision, %node, kind = ?failure.kind, detail = failure.detail, "revision does not start");
        }
        FromNode::Hello(_) | FromNode::Usage(_) | FromNode::Left | FromNode::Heartbeat => {}
    }
}

/// The engine orders a change.
pub(crate) fn ordered(command: &Command) {
    if let Command::Node { node, message } = command {
        match message {
            ToNode::Create { sandbox, revision, .. } => {
                tracing::debug!(%sandbox, %revision, %node, "sandbox ordered");
            }
            ToNode::Stop { sandbox, mode } => {
                tracing::debug!(%sandbox, %node, ?mode, "sandbox to be stopped");
            }
            ToNode::RevisionRemoved(revision) => {
                tracing::debug!(%revision, %node, "revision to be forgotten");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use fanfare_types::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_change_is_a_line_with_its_fields_and_floods_are_at_debug() {
        let sink = Sink::default();
        let written = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || written.clone())
            .finish();
        let (node, sandbox) = (NodeId(2), SandboxId(7));
        let revision = RevisionId { function: FunctionId(3), number: 4 };
        let cause = |exit| GoneCause { exit, log_tail: Arc::from("") };
        let from = |message| Event::FromNode { node, message };
        let data_plane =
            |message| Event::FromDataPlane { data_plane: DataPlaneId(5), message, received: Timestamp::ZERO };
        tracing::subscriber::with_default(subscriber, || {
            told(&Event::FunctionRemoved(revision.function));
            ordered(&Command::Node { node, message: ToNode::Create { sandbox, revision, waited: true } });
            told(&from(FromNode::Ready {
                sandbox,
                endpoint: Arc::from("unix:/s"),
                stages: Stages::default(),
            }));
            told(&from(FromNode::Exited { sandbox, cause: cause(ExitCause::Status(3)) }));
            told(&from(FromNode::Exited { sandbox, cause: cause(ExitCause::Stopped) }));
            told(&from(FromNode::Prepared { revision, failure: None }));
            told(&data_plane(FromDataPlane::Condemned { sandbox, why: Condemned::Timeout }));
            told(&data_plane(FromDataPlane::Draining));
            told(&data_plane(FromDataPlane::Heartbeat));
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let expected = [
            ("INFO", "function deleted id=f3"),
            ("DEBUG", "sandbox ordered sandbox=s7 revision=f3r4 node=n2"),
            ("DEBUG", "sandbox ready sandbox=s7 node=n2"),
            ("INFO", "sandbox ended sandbox=s7 node=n2 cause=exited with status 3"),
            ("DEBUG", "sandbox stopped sandbox=s7"),
            ("INFO", "revision proved to start revision=f3r4 node=n2"),
            ("INFO", "sandbox condemned sandbox=s7 data_plane=d5 why=Timeout"),
            ("INFO", "data plane drains data_plane=d5"),
        ];
        assert_eq!(text.lines().count(), expected.len(), "{text}");
        for (line, (level, words)) in text.lines().zip(expected) {
            assert!(line.contains(level) && line.contains(words), "{line}: {level} {words}");
        }
    }
}
