//! One listening socket for any number of sandboxes.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fanfare_types::SandboxId;
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::answer;
use super::sandbox::Sandbox;

/// Connections that one listener serves at once; more wait in its backlog.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4_096;
/// First and number of addresses of sandboxes: 127.1.0.0 to 127.254.255.255.
const ADDRESS_FIRST: u32 = 0x7f01_0000;
const ADDRESSES: u32 = 254 << 16;

/// Where fake sandboxes are reached. Share one among all fake runtimes of a process.
///
/// - [`FakeListener::tcp`]: every sandbox has a loopback address of its own (`tcp:127.1.0.7:PORT`), and all of them
///   are one socket: Linux delivers the whole of 127.0.0.0/8 to it, and the address that a client connected to says
///   which sandbox it meant. Plain HTTP is all a data plane needs, and a sandbox's end closes its connections.
/// - [`FakeListener::unix`]: every sandbox has the same path, which costs less CPU per request. Which one is meant is
///   said in the request header `x-fanfare-sandbox: s1f`; a request without it is answered by nobody in particular
///   and counted nowhere.
pub struct FakeListener {
    hall: Arc<Hall>,
    kind: Kind,
    accepting: JoinHandle<()>,
}

enum Kind {
    Tcp { port: u16 },
    Unix { path: PathBuf, endpoint: Arc<str> },
}

/// The sandboxes behind one listener.
#[derive(Default)]
pub(super) struct Hall {
    rooms: Mutex<Rooms>,
}

#[derive(Default)]
struct Rooms {
    by_number: HashMap<u32, Arc<Sandbox>>,
    by_id: HashMap<SandboxId, u32>,
    next: u32,
}

impl std::fmt::Debug for FakeListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Tcp { port } => write!(f, "FakeListener(tcp:127.0.0.0/8:{port})"),
            Kind::Unix { endpoint, .. } => write!(f, "FakeListener({endpoint})"),
        }
    }
}

impl FakeListener {
    /// Listens on a free port of every loopback address, and on no other interface.
    ///
    /// # Errors
    /// What the operating system says. Must be called within a tokio runtime.
    pub fn tcp() -> io::Result<Arc<FakeListener>> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // The unspecified address, but bound to the loopback interface: nothing from outside gets here.
        socket.bind_device(Some(b"lo"))?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from_std(socket.into())?;
        let port = listener.local_addr()?.port();
        let hall = Arc::new(Hall::default());
        let accepting = tokio::spawn(accept_tcp(listener, hall.clone()));
        Ok(Arc::new(FakeListener { hall, kind: Kind::Tcp { port }, accepting }))
    }

    /// Listens on a unix socket, which is removed again when the listener is dropped.
    ///
    /// # Errors
    /// What the operating system says, e.g. that the path exists. Must be called within a tokio runtime.
    pub fn unix(path: &Path) -> io::Result<Arc<FakeListener>> {
        let text = path
            .to_str()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path is not UTF-8"))?;
        let listener = UnixListener::bind(path)?;
        let hall = Arc::new(Hall::default());
        let accepting = tokio::spawn(accept_unix(listener, hall.clone()));
        let kind = Kind::Unix { path: path.to_owned(), endpoint: format!("unix:{text}").into() };
        Ok(Arc::new(FakeListener { hall, kind, accepting }))
    }

    /// Makes a sandbox reachable; `None` when every address is taken.
    pub(super) fn register(&self, sandbox: &Arc<Sandbox>) -> Option<Arc<str>> {
        let mut rooms = self.hall.rooms.lock();
        if rooms.by_number.len() >= ADDRESSES as usize {
            return None;
        }
        // In turn, so that an address is used again as late as possible: someone may still connect to it.
        while rooms.by_number.contains_key(&rooms.next) {
            rooms.next = (rooms.next + 1) % ADDRESSES;
        }
        let number = rooms.next;
        rooms.next = (number + 1) % ADDRESSES;
        rooms.by_number.insert(number, sandbox.clone());
        rooms.by_id.insert(sandbox.id, number);
        Some(match &self.kind {
            Kind::Tcp { port } => format!("tcp:{}:{port}", Ipv4Addr::from(ADDRESS_FIRST + number)).into(),
            Kind::Unix { endpoint, .. } => endpoint.clone(),
        })
    }

    pub(super) fn unregister(&self, sandbox: SandboxId) {
        let mut rooms = self.hall.rooms.lock();
        if let Some(number) = rooms.by_id.remove(&sandbox) {
            rooms.by_number.remove(&number);
        }
    }

    /// The sandboxes that are reachable, of all runtimes.
    pub(super) fn registered(&self) -> Vec<Arc<Sandbox>> {
        self.hall.rooms.lock().by_number.values().cloned().collect()
    }
}

impl Drop for FakeListener {
    fn drop(&mut self) {
        self.accepting.abort();
        if let Kind::Unix { path, .. } = &self.kind
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "the fake's socket cannot be removed");
        }
    }
}

impl Hall {
    fn by_address(&self, address: IpAddr) -> Option<Arc<Sandbox>> {
        let IpAddr::V4(address) = address else { return None };
        let number = u32::from(address).checked_sub(ADDRESS_FIRST)?;
        self.rooms.lock().by_number.get(&number).cloned()
    }

    pub(super) fn by_id(&self, id: SandboxId) -> Option<Arc<Sandbox>> {
        let rooms = self.rooms.lock();
        rooms.by_id.get(&id).and_then(|number| rooms.by_number.get(number)).cloned()
    }
}

async fn accept_tcp(listener: TcpListener, hall: Arc<Hall>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                accept_failed(&error).await;
                continue;
            }
        };
        let sandbox = stream.local_addr().ok().and_then(|address| hall.by_address(address.ip()));
        let Some(sandbox) = sandbox else {
            reset(&stream);
            continue;
        };
        tokio::spawn(async move {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection without TCP_NODELAY");
            }
            answer::serve_one(stream, sandbox).await;
            drop(place);
        });
    }
}

async fn accept_unix(listener: UnixListener, hall: Arc<Hall>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let hall = hall.clone();
                tokio::spawn(async move {
                    answer::serve_all(stream, hall).await;
                    drop(place);
                });
            }
            Err(error) => accept_failed(&error).await,
        }
    }
}

/// Nobody lives there: the client is told at once, and by an error.
fn reset(stream: &TcpStream) {
    if let Err(error) = stream.set_zero_linger() {
        tracing::debug!(%error, "a connection to a sandbox that is gone is closed, not reset");
    }
}

/// The process is out of descriptors, or the client left: others may yet go, so the loop goes on, but not hot.
async fn accept_failed(error: &io::Error) {
    tracing::warn!(%error, "the fake runtime cannot accept a connection");
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
}
