//! The conversation with a language shim about one sandbox (`shims/PROTOCOL.md`, section 2.1).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fanfare_types::{StartFailure, StartFailureKind};
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::fdmsg;
use crate::revision::failure;
use crate::sys;

/// Bytes of one message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// What a shim says. Everything in it may have been written by user code.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(crate) enum GateWord {
    /// It exists and waits.
    Hello,
    /// It is about to accept.
    Ready,
    /// It cannot.
    Failed(ShimFailure),
}

/// Why a shim cannot serve.
#[derive(Debug, Deserialize)]
pub(crate) struct ShimFailure {
    kind: String,
    #[serde(default)]
    detail: String,
}

impl ShimFailure {
    /// As the platform's word.
    pub(crate) fn into_failure(self) -> StartFailure {
        let kind = match self.kind.as_str() {
            "handler-not-found" => StartFailureKind::HandlerNotFound,
            "import-failed" => StartFailureKind::ImportFailed,
            _ => StartFailureKind::Node,
        };
        failure(kind, self.hint().map_or(self.detail.clone(), |hint| format!("{} ({hint})", self.detail)))
    }

    /// What a failed import shows to be meant otherwise.
    fn hint(&self) -> Option<&'static str> {
        let looks_for_port = self.kind == "import-failed" && self.detail == "KeyError: 'PORT'";
        looks_for_port.then_some(
            "a handler has no $PORT: a program that serves HTTP itself is deployed with kind = \"http\" and its command",
        )
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Go<'a> {
    Go {
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        mounts: &'a [&'a str],
    },
}

/// The runtime's end.
#[derive(Debug)]
pub(crate) struct Gate {
    socket: AsyncFd<OwnedFd>,
}

impl Gate {
    /// Makes a gate and the sandbox's end of it.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = fdmsg::pair_with_user_code()?;
        rustix::net::sockopt::set_socket_passcred(&ours, true)?;
        Ok((Gate { socket: sys::async_fd(ours, Interest::READABLE)? }, theirs))
    }

    /// Lets the sandbox load user code, after it has joined the cgroups of these files and, in namespaces of its own,
    /// mounted these file systems on these directories. May be sent before it asks.
    pub(crate) fn go(&self, join: &[OwnedFd], mounts: &[OwnedFd], on: &[&str]) -> io::Result<()> {
        let message = serde_json::to_vec(&Go::Go { mounts: on })?;
        let fds: Vec<_> = join.iter().chain(mounts).map(AsFd::as_fd).collect();
        fdmsg::send(self.socket.get_ref(), &message, &fds, SendFlags::DONTWAIT)
    }

    /// The next word, with the sender's process id on this host; `None` when it has closed its end.
    pub(crate) async fn word(&self) -> io::Result<Option<(GateWord, Option<i32>)>> {
        let receive = |fd: &OwnedFd| fdmsg::receive_sized(fd, MESSAGE_BYTES_MAX, RecvFlags::DONTWAIT);
        let (bytes, packet) = self.socket.async_io(Interest::READABLE, receive).await?;
        match bytes.is_empty() {
            true => Ok(None),
            false => Ok(Some((fdmsg::parse(&bytes)?, packet.pid))),
        }
    }
}

/// A packet of any bytes: a word, or none.
pub(crate) fn fuzz(packet: &[u8]) {
    if let Ok(GateWord::Failed(why)) = serde_json::from_slice(packet) {
        let failure = why.into_failure();
        assert!(failure.detail.chars().count() <= crate::revision::DETAIL_CHARS_MAX);
        assert!(!failure.detail.contains(char::is_control));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn words_carry_the_senders_pid() {
        let (gate, theirs) = Gate::new().unwrap();
        gate.go(&[], &[], &[]).unwrap();
        let mut buffer = [0; 64];
        let packet = fdmsg::receive(&theirs, &mut buffer, RecvFlags::empty()).unwrap();
        assert_eq!(&buffer[..packet.len], br#"{"type":"go"}"#);
        let say = |text: &str| fdmsg::send(theirs.as_fd(), text.as_bytes(), &[], SendFlags::empty()).unwrap();
        say(r#"{"type":"hello","more":1}"#);
        let (word, pid) = gate.word().await.unwrap().unwrap();
        assert!(matches!(word, GateWord::Hello));
        assert_eq!(pid, i32::try_from(std::process::id()).ok());
        say(r#"{"type":"failed","kind":"import-failed","detail":"x"}"#);
        let Some((GateWord::Failed(why), _)) = gate.word().await.unwrap() else { panic!("not a failure") };
        assert_eq!(why.into_failure().kind, StartFailureKind::ImportFailed);
        say(r#"{"type":"failed","kind":"import-failed","detail":"KeyError: 'PORT'"}"#);
        let Some((GateWord::Failed(why), _)) = gate.word().await.unwrap() else { panic!("not a failure") };
        assert!(why.into_failure().detail.contains("kind = \"http\""));
        say("nonsense");
        assert!(gate.word().await.is_err());
        drop(theirs);
        assert!(gate.word().await.unwrap().is_none());
    }
}
