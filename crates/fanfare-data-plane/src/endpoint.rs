//! Where a sandbox is, and how to connect to it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UnixStream};

use crate::stream::{Socket, Stream};

/// How long a connection may take where the request's deadline allows more.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// First pause before a broker that hung up is asked again; doubles to the maximum.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(5);
/// Longest such pause.
const ASK_AGAIN_MAX: Duration = Duration::from_millis(100);

/// Where a sandbox listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `tcp:HOST:PORT`
    Tcp(Arc<str>),
    /// `broker:PATH#SANDBOX`: the broker at PATH passes a connected socket.
    Broker(PathBuf, Arc<str>),
}

impl Endpoint {
    /// `None` when it is none of the three.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "unix" if !rest.is_empty() => Some(Endpoint::Unix(rest.into())),
            "tcp"
                if rest.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
                }) =>
            {
                Some(Endpoint::Tcp(rest.into()))
            }
            "broker" => {
                let (path, sandbox) = rest.rsplit_once('#')?;
                let good = !path.is_empty() && !sandbox.is_empty() && !sandbox.contains('\n');
                good.then(|| Endpoint::Broker(path.into(), sandbox.into()))
            }
            _ => None,
        }
    }

    /// Connects within `limit` (and [`CONNECT_TIMEOUT`]).
    ///
    /// # Errors
    /// Nothing was sent to the sandbox in any case: it cannot be reached, or not in time.
    pub(crate) async fn connect(&self, limit: Duration) -> io::Result<Stream> {
        let limit = limit.min(CONNECT_TIMEOUT);
        // A unix socket connects or fails at once: no timer.
        if let Endpoint::Unix(path) = self {
            return connect_unix(path, limit).await.map(unix);
        }
        match tokio::time::timeout(limit, self.connect_slowly(limit)).await {
            Ok(connected) => connected,
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    async fn connect_slowly(&self, limit: Duration) -> io::Result<Stream> {
        match self {
            Endpoint::Unix(path) => connect_unix(path, limit).await.map(unix),
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(&**address).await?;
                stream.set_nodelay(true)?;
                Ok(Stream::new(Socket::Tcp(stream)))
            }
            Endpoint::Broker(path, sandbox) => ask_broker(path, sandbox, limit).await,
        }
    }
}

fn unix(stream: UnixStream) -> Stream {
    Stream::new(Socket::Unix(stream))
}

async fn connect_unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    match UnixStream::connect(path).await {
        // The backlog is full. The kernel tells nobody when it no longer is, except a blocked `connect`.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            let path = path.to_owned();
            let blocking = move || connect_blocking(&path, limit);
            tokio::task::spawn_blocking(blocking).await.map_err(io::Error::other)??.try_into()
        }
        other => other,
    }
}

struct Blocking(std::os::unix::net::UnixStream);

impl TryFrom<Blocking> for UnixStream {
    type Error = io::Error;

    fn try_from(blocking: Blocking) -> io::Result<Self> {
        blocking.0.set_nonblocking(true)?;
        UnixStream::from_std(blocking.0)
    }
}

fn connect_blocking(path: &Path, limit: Duration) -> io::Result<Blocking> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // Bounds `connect`, too (unix(7)).
    socket.set_write_timeout(Some(limit.max(Duration::from_millis(1))))?;
    socket.connect(&socket2::SockAddr::unix(path)?)?;
    socket.set_write_timeout(None)?;
    Ok(Blocking(OwnedFd::from(socket).into()))
}

/// Asks until it is answered: a broker that hangs up has too much to do, and says nothing of the sandbox.
async fn ask_broker(path: &Path, sandbox: &str, limit: Duration) -> io::Result<Stream> {
    let mut pause = ASK_AGAIN_MIN;
    loop {
        if let Some(socket) = ask_broker_once(path, sandbox, limit).await? {
            return adopt(socket);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(ASK_AGAIN_MAX);
    }
}

/// `None` where it hung up.
async fn ask_broker_once(path: &Path, sandbox: &str, limit: Duration) -> io::Result<Option<OwnedFd>> {
    let mut broker = connect_unix(path, limit).await?;
    // It may hang up before it has read this.
    let hung_up = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    };
    let asked = match broker.write_all(format!("{sandbox}\n").as_bytes()).await {
        Err(error) if hung_up(&error) => return Ok(None),
        other => other,
    };
    asked?;
    loop {
        broker.readable().await?;
        match broker.try_io(Interest::READABLE, || receive(&broker)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if hung_up(&error) => return Ok(None),
            other => return other,
        }
    }
}

/// Reads the broker's answer: one byte, `0` when it carries a socket; `None` where it hung up.
fn receive(broker: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8];
    let mut buffers = [io::IoSliceMut::new(&mut byte)];
    let message = rustix::net::recvmsg(broker, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = None;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            // Others, if any, are closed as they are dropped.
            received = descriptors.into_iter().next().or(received);
        }
    }
    match (message.bytes, byte, received) {
        (0, ..) => Ok(None),
        (_, [b'0'], Some(socket)) => Ok(Some(socket)),
        (_, [b'0'], None) => {
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the broker sent no socket"))
        }
        _ => Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the broker refused")),
    }
}

fn adopt(socket: OwnedFd) -> io::Result<Stream> {
    let family = rustix::net::sockopt::socket_domain(socket.as_fd())?;
    if family == AddressFamily::UNIX {
        return Blocking(socket.into()).try_into().map(unix);
    }
    if family == AddressFamily::INET || family == AddressFamily::INET6 {
        let stream = std::net::TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        return TcpStream::from_std(stream).map(|s| Stream::new(Socket::Tcp(s)));
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "the broker sent neither a unix nor a TCP socket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_parse() {
        let cases = [
            ("unix:/run/f.sock", Some(Endpoint::Unix("/run/f.sock".into()))),
            ("tcp:10.0.0.1:80", Some(Endpoint::Tcp("10.0.0.1:80".into()))),
            ("tcp:[::1]:80", Some(Endpoint::Tcp("[::1]:80".into()))),
            ("broker:/run/b#s1f", Some(Endpoint::Broker("/run/b".into(), "s1f".into()))),
            ("broker:/run/a#b#s1", Some(Endpoint::Broker("/run/a#b".into(), "s1".into()))),
            ("unix:", None),
            ("tcp:host", None),
            ("tcp:host:0", None),
            ("tcp::80", None),
            ("broker:/run/b", None),
            ("broker:#s", None),
            ("http://x", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Endpoint::parse(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_full_backlog_is_waited_for_and_not_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        listener.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let endpoint = Endpoint::Unix(path);
        let first = endpoint.connect(Duration::from_secs(1)).await.unwrap();
        let full = endpoint.connect(Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(full.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{full}");
        let waits = tokio::spawn(async move { endpoint.connect(Duration::from_secs(60)).await });
        let accepted = tokio::task::spawn_blocking(move || [listener.accept(), listener.accept()]);
        waits.await.unwrap().unwrap();
        assert!(accepted.await.unwrap().iter().all(Result::is_ok));
        drop(first);
    }

    #[tokio::test]
    async fn a_broker_that_hangs_up_is_asked_again() {
        use tokio::io::AsyncReadExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let broker = async {
            for _ in 0..2 {
                drop(listener.accept().await.unwrap());
            }
            let (mut asked, _) = listener.accept().await.unwrap();
            let mut line = [0; 3];
            asked.read_exact(&mut line).await.unwrap();
            asked.write_all(b"1").await.unwrap();
            line
        };
        let endpoint = Endpoint::Broker(path, "s1".into());
        let (line, refused) = tokio::join!(broker, endpoint.connect(Duration::from_secs(60)));
        assert_eq!(&line, b"s1\n");
        assert!(refused.unwrap_err().to_string().contains("refused"), "its word is an answer");
    }
}
