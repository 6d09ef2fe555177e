//! The load generator for HTTP/2: one thread and one connection, with a fixed number of requests under way (a closed loop).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::error::{Context, Error, Result};
use crate::load::histogram;

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// One connection.
#[derive(Debug)]
pub(crate) struct H2Loader {
    tokio: tokio::runtime::Runtime,
    address: SocketAddr,
    sender: SendRequest<Empty<Bytes>>,
}

impl H2Loader {
    /// Connects without TLS and speaks HTTP/2 from the first byte.
    pub(crate) fn connect(address: SocketAddr) -> Result<H2Loader> {
        let tokio =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("start tokio")?;
        let sender = tokio.block_on(async {
            let stream = TcpStream::connect(address).await.context(address)?;
            stream.set_nodelay(true).context(address)?;
            let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
            let (sender, connection) = handshake.context(address)?;
            // Requests find out themselves when it fails.
            tokio::spawn(async { drop(connection.await) });
            Ok::<_, Error>(sender)
        })?;
        Ok(H2Loader { tokio, address, sender })
    }

    /// Asks for `path` with `requests` under way until `until`, then waits for what is. Every answer must be a 200. Gives
    /// the latencies in nanoseconds, and the time from the first request to the last answer.
    pub(crate) fn run(
        &mut self,
        path: &str,
        requests: usize,
        until: Instant,
    ) -> Result<(Histogram<u64>, Duration)> {
        let request = Request::get(format!("http://{}{path}", self.address)).body(Empty::new());
        let request: Request<Empty<Bytes>> = request.context(path)?;
        let latencies = Arc::new(Mutex::new(histogram()?));
        let begun = Instant::now();
        self.tokio.block_on(async {
            let mut loops = JoinSet::new();
            for _ in 0..requests {
                loops.spawn(again(self.sender.clone(), request.clone(), until, latencies.clone()));
            }
            while let Some(ended) = loops.join_next().await {
                ended.context("a loop of requests")?.context(self.address)?;
            }
            Ok::<_, Error>(())
        })?;
        let elapsed = begun.elapsed();
        let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((latencies, elapsed))
    }
}

async fn again(
    mut sender: SendRequest<Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
    until: Instant,
    latencies: Arc<Mutex<Histogram<u64>>>,
) -> Result<()> {
    loop {
        let begun = Instant::now();
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, async {
            sender.ready().await.context("wait for the connection")?;
            let answer = sender.send_request(request.clone()).await.context("a request")?;
            let status = answer.status();
            let body = answer.into_body().collect().await.context("an answer's body")?;
            Ok::<_, Error>((status, body.to_bytes()))
        });
        let (status, body) = answer.await.context("an answer")??;
        if status != StatusCode::OK {
            return Err(Error::new(format!("answered {status}: {}", String::from_utf8_lossy(&body))));
        }
        let ended = Instant::now();
        let nanos = u64::try_from(ended.duration_since(begun).as_nanos()).unwrap_or(u64::MAX);
        latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
        if ended >= until {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;
    use http_body_util::Full;
    use hyper::service::service_fn;

    use super::*;

    /// Serves one connection, ever; counts the requests that are under way at once.
    fn server(status: StatusCode) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, most) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (under_way, counted) = (Arc::new(AtomicUsize::new(0)), most.clone());
        std::thread::spawn(move || {
            let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tokio.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let (stream, _) = listener.accept().await.unwrap();
                let service = service_fn(|_| {
                    counted.fetch_max(under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let under_way = under_way.clone();
                    async move {
                        tokio::task::yield_now().await;
                        under_way.fetch_sub(1, Ordering::SeqCst);
                        let mut response = Response::new(Full::new(Bytes::from_static(b"x")));
                        *response.status_mut() = status;
                        Ok::<_, Infallible>(response)
                    }
                });
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        });
        (address, most)
    }

    #[test]
    fn all_requests_share_one_connection() {
        let (address, most) = server(StatusCode::OK);
        let mut loader = H2Loader::connect(address).unwrap();
        let span = Duration::from_millis(50);
        for requests in [1, 20] {
            let begun = Instant::now();
            let (latencies, elapsed) = loader.run("/x", requests, begun + span).unwrap();
            assert!(begun.elapsed() >= span && latencies.len() >= requests as u64);
            assert!(latencies.max() < elapsed.as_nanos() as u64);
            assert!(most.load(Ordering::SeqCst) <= requests);
        }
        assert!(most.load(Ordering::SeqCst) > 1, "requests wait for one another");
    }

    #[test]
    fn what_is_no_200_is_a_failure() {
        let (address, _) = server(StatusCode::SERVICE_UNAVAILABLE);
        let mut loader = H2Loader::connect(address).unwrap();
        let error = loader.run("/x", 2, Instant::now() + Duration::from_millis(10)).unwrap_err().to_string();
        assert!(error.contains("503") && error.contains('x'), "{error}");
    }
}
