//! One connection that stays open between requests.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::record::Outcome;
use crate::wire::{self, Frame, Parsed};

const BUFFER_BYTES: usize = 4 << 10;
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// A buffer that has grown beyond this is given back after the answer that it grew for.
const BUFFER_KEPT_BYTES: usize = 64 << 10;

/// A socket, what is still to be written, and what has been read of an answer.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    pub(crate) out: Vec<u8>,
    written: usize,
    buffer: Vec<u8>,
    filled: usize,
    /// With fewer bytes the answer is not whole.
    needed: usize,
    /// Whether an answer's first byte has been seen.
    pub(crate) answering: bool,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progressed {
    /// Its answer is not whole.
    Open,
    /// Its answer is there.
    Answered(Frame),
}

impl Connection {
    /// Begins to connect.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Connection> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // It only delays small requests if it fails.
        let _ = socket.set_tcp_nodelay(true);
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(Connection {
            socket: socket.into(),
            out: Vec::new(),
            written: 0,
            buffer: vec![0; BUFFER_BYTES],
            filled: 0,
            needed: 0,
            answering: false,
        })
    }

    /// Makes ready for a request, which the caller writes into `out`.
    pub(crate) fn begin(&mut self) {
        self.out.clear();
        (self.written, self.filled, self.needed, self.answering) = (0, 0, 0, false);
        if self.buffer.len() > BUFFER_KEPT_BYTES {
            self.buffer = vec![0; BUFFER_BYTES];
        }
    }

    /// Writes and reads as much as there is.
    ///
    /// # Errors
    /// How the request has ended without an answer.
    pub(crate) fn advance(&mut self) -> Result<Progressed, Outcome> {
        self.write()?;
        loop {
            match self.socket.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(Outcome::Closed),
                Ok(read) => {
                    self.filled += read;
                    self.answering = true;
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(Progressed::Open),
                    ErrorKind::Interrupted => continue,
                    _ => return Err(ended(&error)),
                },
            }
            if self.filled < self.needed {
                continue;
            }
            match wire::read(&self.buffer[..self.filled]) {
                // Of bytes beyond the answer nobody knows what they are.
                Ok(Parsed::Whole(frame)) if frame.len == self.filled => {
                    return Ok(Progressed::Answered(frame));
                }
                Ok(Parsed::Partial { needed }) if needed <= ANSWER_BYTES_MAX => {
                    self.needed = needed;
                    if needed > self.buffer.len() {
                        self.buffer.resize(needed.next_power_of_two(), 0);
                    }
                }
                Ok(_) | Err(_) => return Err(Outcome::BadAnswer),
            }
        }
    }

    fn write(&mut self) -> Result<(), Outcome> {
        while self.written < self.out.len() {
            match self.socket.write(&self.out[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(ended(&error)),
                },
            }
        }
        Ok(())
    }

    /// What has been read.
    pub(crate) fn answer(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

/// What an error of the socket means for its request.
fn ended(error: &io::Error) -> Outcome {
    match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::TimedOut => Outcome::ConnectError,
        _ => Outcome::Closed,
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Goes on when there is something to read.
    fn advanced(connection: &mut Connection) -> Result<Progressed, Outcome> {
        let mut fds = [rustix::event::PollFd::new(&*connection, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        connection.advance()
    }

    #[test]
    fn that_its_server_has_closed_it_is_known_before_it_is_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        connection.begin();
        connection.out.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(connection.advance(), Ok(Progressed::Open));
        server.read_exact(&mut [0; 18]).unwrap();
        server.write_all(b"HTTP/1.1 204 X\r\n").unwrap();
        assert_eq!(advanced(&mut connection), Ok(Progressed::Open));
        server.write_all(b"\r\n").unwrap();
        assert!(matches!(advanced(&mut connection), Ok(Progressed::Answered(frame)) if frame.status == 204));
        // It rests, and is told that nothing has happened; then its server leaves.
        assert_eq!(connection.advance(), Ok(Progressed::Open));
        drop(server);
        assert_eq!(advanced(&mut connection), Err(Outcome::Closed));
    }

    #[test]
    fn bytes_that_nobody_asked_for_end_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connection = Connection::open(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        connection.begin();
        server.write_all(b"HTTP/1.1 204 X\r\n\r\nHTTP/1.1 204 X\r\n\r\n").unwrap();
        assert_eq!(advanced(&mut connection), Err(Outcome::BadAnswer));
    }
}
