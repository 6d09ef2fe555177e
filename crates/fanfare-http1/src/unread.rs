//! For servers: what is not read of a request when its answer is there.
//!
//! A server that has answered a request and not read its body to the end must close the connection (RFC 9112, section
//! 9.3), and a client that is not told finds that out with its next request, which it may not repeat. So a [`Watched`]
//! body that is dropped early comes back to whoever answers, and [`Rest::settle`] says what is to be said. And closing
//! a connection with something unread in it resets it, by which the client may lose the answer: [`Linger`] reads on for
//! a moment.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes that are read for nothing so that a connection can be kept.
const SETTLE_BYTES_MAX: u64 = 64 * 1024;
/// Turns of the event loop without a byte after which the rest is not here: the first lets the server's buffer be
/// looked at, the second the socket.
const SETTLE_TURNS_MAX: u32 = 2;
/// How long, and for how many bytes, a connection is read on that is about to be closed.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one such read.
const LINGER_READ_BYTES: usize = 16 * 1024;

/// A request's body; where it is not read to its end, [`Rest`] knows.
#[derive(Debug)]
pub struct Watched<B: Body> {
    /// Taken by the drop.
    body: Option<B>,
    rest: Rest<B>,
}

/// What is left of a [`Watched`] body.
#[derive(Debug)]
pub struct Rest<B>(Option<Arc<Mutex<State<B>>>>);

#[derive(Debug)]
enum State<B> {
    /// It is being read.
    Open,
    Read,
    /// It broke off: there is nothing that could be read.
    Broken,
    /// It was dropped before its end.
    Left(B),
    /// Nobody asks any more.
    Answered,
}

/// What [`Rest::settle`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The body is read to its end: the connection can be used again.
    Read,
    /// It is not: the connection will be closed.
    Unread,
    /// It is still being read by someone.
    Open,
}

impl<B: Body> Watched<B> {
    /// A body, and what tells of its rest.
    pub fn new(body: B) -> (Self, Rest<B>) {
        let state = (!body.is_end_stream()).then(|| Arc::new(Mutex::new(State::Open)));
        (Watched { body: Some(body), rest: Rest(state.clone()) }, Rest(state))
    }

    /// A body whose rest is of no interest.
    pub fn unwatched(body: B) -> Self {
        Watched { body: Some(body), rest: Rest(None) }
    }
}

impl<B> Rest<B> {
    /// Of a body whose rest is of no interest.
    pub fn none() -> Self {
        Rest(None)
    }

    fn set(&self, new: State<B>) -> Option<State<B>> {
        let state = self.0.as_ref()?;
        Some(std::mem::replace(&mut *state.lock().unwrap_or_else(PoisonError::into_inner), new))
    }
}

impl<B: Body + Unpin> Rest<B> {
    /// Reads what is left if that `may` be, and it is little and here already. Nothing is waited for.
    pub async fn settle(self, may: bool) -> Settled {
        match self.set(State::Answered) {
            None | Some(State::Read) => Settled::Read,
            Some(State::Open) => Settled::Open,
            Some(State::Left(body)) if may => match drain(body).await {
                true => Settled::Read,
                false => Settled::Unread,
            },
            Some(_) => Settled::Unread,
        }
    }
}

async fn drain<B: Body + Unpin>(mut body: B) -> bool {
    let mut left = SETTLE_BYTES_MAX;
    let mut turns = 0;
    while body.size_hint().lower() <= left {
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await {
            Poll::Ready(None) => return true,
            Poll::Ready(Some(Err(_))) => return false,
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining) as u64;
                let Some(fewer) = left.checked_sub(bytes) else { return false };
                (left, turns) = (fewer, 0);
                if body.is_end_stream() {
                    return true;
                }
            }
            Poll::Pending if turns == SETTLE_TURNS_MAX => return false,
            Poll::Pending => {
                turns += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    false
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        let reached = match &frame {
            Some(Err(_)) => Some(State::Broken),
            None => Some(State::Read),
            Some(Ok(_)) => body.is_end_stream().then_some(State::Read),
        };
        if let Some(reached) = reached {
            self.rest.set(reached);
            self.rest = Rest(None);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl<B: Body> Drop for Watched<B> {
    fn drop(&mut self) {
        let (Some(state), Some(body)) = (&self.rest.0, self.body.take()) else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Open) {
            *state = State::Left(body);
        }
    }
}

/// Reads what a client still says on a connection that is closed for writing, until its end or a limit.
#[derive(Debug)]
pub struct Linger {
    timer: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Default for Linger {
    fn default() -> Self {
        Linger { timer: Box::pin(sleep(LINGER)), bytes: 0 }
    }
}

impl Linger {
    /// Ready when the connection can be closed.
    pub fn poll(&mut self, cx: &mut Context<'_>, stream: &mut (impl AsyncRead + Unpin)) -> Poll<()> {
        let mut space = [0; LINGER_READ_BYTES];
        while self.bytes < LINGER_BYTES_MAX && self.timer.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.bytes += buffer.filled().len(),
                // Its end, or it has left: nothing is left to tell it.
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    use super::*;

    /// A body that is sent piece by piece, and has its end with the channel's.
    struct Pieces(mpsc::UnboundedReceiver<Result<usize, &'static str>>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            let piece = ready!(self.0.poll_recv(cx));
            Poll::Ready(piece.map(|piece| piece.map(|bytes| Frame::data(vec![0; bytes].into()))))
        }
    }

    #[tokio::test]
    async fn what_is_little_and_here_is_read() {
        let limit = usize::try_from(SETTLE_BYTES_MAX).unwrap();
        let half = limit / 2;
        type Piece = Result<usize, &'static str>;
        let cases: [(&[Piece], bool, Settled); 6] = [
            (&[], true, Settled::Read),
            (&[Ok(2)], true, Settled::Read),
            (&[Ok(half), Ok(half)], true, Settled::Read),
            (&[Ok(half), Ok(half), Ok(1)], true, Settled::Unread),
            (&[Ok(2)], false, Settled::Unread),
            (&[Ok(2), Err("it broke")], true, Settled::Unread),
        ];
        for (pieces, ended, settled) in cases {
            let (say, body) = mpsc::unbounded_channel();
            let (watched, rest) = Watched::new(Pieces(body));
            pieces.iter().for_each(|piece| say.send(*piece).unwrap());
            let open = (!ended).then_some(say);
            drop(watched);
            assert_eq!(rest.settle(true).await, settled, "{pieces:?} {ended}");
            assert!(open.is_none_or(|open| open.is_closed()), "nothing keeps it");
        }
    }

    #[tokio::test]
    async fn what_was_read_is_known() {
        let (say, body) = mpsc::unbounded_channel();
        let (mut watched, rest) = Watched::new(Pieces(body));
        say.send(Ok(1)).unwrap();
        watched.frame().await.unwrap().unwrap();
        drop(say);
        assert!(watched.frame().await.is_none());
        assert_eq!(rest.settle(true).await, Settled::Read);

        let (say, body) = mpsc::unbounded_channel();
        let (watched, rest) = Watched::new(Pieces(body));
        drop((say, watched));
        assert_eq!(rest.settle(false).await, Settled::Unread, "it may not be read");

        let (say, body) = mpsc::unbounded_channel();
        let (watched, rest) = Watched::new(Pieces(body));
        assert_eq!(rest.settle(true).await, Settled::Open);
        drop(watched);
        assert!(say.is_closed(), "what nobody asks for is not kept");

        let (say, body) = mpsc::unbounded_channel();
        let (mut watched, rest) = Watched::new(Pieces(body));
        say.send(Err("it broke")).unwrap();
        assert!(watched.frame().await.unwrap().is_err());
        drop((say, watched));
        assert_eq!(rest.settle(true).await, Settled::Unread, "its end was never here");
    }
}
