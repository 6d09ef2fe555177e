//! A steady load from clients that keep their connections and try nothing twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::cluster::PATIENCE;

/// Clients that call a function until they are told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// So many clients that call `url` (`http://HOST:PORT/PATH`) so many times a second all together, with a function
    /// that looks at the answers of each client in their order.
    pub(crate) fn start<L>(url: &str, clients: u32, per_second: u32, look: impl Fn() -> L) -> Load
    where
        L: FnMut(&str) -> Result<(), String> + Send + 'static,
    {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let pause = Duration::from_secs(1) * clients / per_second;
        let clients = (0..clients).map(|number| {
            let (stop, answered, look) = (stop.clone(), answered.clone(), look());
            let (host, path) = url.trim_start_matches("http://").split_once('/').unwrap();
            let client = Client { host: host.to_owned(), path: format!("/{path}"), connection: None };
            let offset = pause * number / clients;
            tokio::spawn(client.run(stop, answered, offset, pause, look))
        });
        let clients = clients.collect();
        Load { stop, answered, clients }
    }

    /// Resolves when so many more have been answered.
    pub(crate) async fn goes_on(&self, more: usize) {
        let until = self.answered.load(Ordering::SeqCst) + more;
        let reached = async {
            while self.answered.load(Ordering::SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the load goes on");
    }

    /// Stops it: how many were answered, and everything that went wrong.
    pub(crate) async fn stop(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::SeqCst);
        let mut wrong = Vec::new();
        for client in self.clients {
            wrong.extend(client.await.unwrap());
        }
        (self.answered.load(Ordering::SeqCst), wrong)
    }
}

struct Client {
    host: String,
    path: String,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    async fn run(
        mut self,
        stop: Arc<AtomicBool>,
        answered: Arc<AtomicUsize>,
        offset: Duration,
        pause: Duration,
        mut look: impl FnMut(&str) -> Result<(), String>,
    ) -> Vec<String> {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + offset, pause);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut wrong = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            ticks.tick().await;
            let answer = match tokio::time::timeout(PATIENCE, self.call()).await {
                Ok(answer) => answer.and_then(|text| look(&text)),
                Err(_) => Err("no answer".to_owned()),
            };
            match answer {
                Ok(()) => drop(answered.fetch_add(1, Ordering::SeqCst)),
                Err(error) => wrong.push(error),
            }
        }
        wrong
    }

    async fn call(&mut self) -> Result<String, String> {
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            && connection.ready().await.is_err()
        {
            // One that was closed before anything was said on it is no error to anybody.
            kept = None;
        }
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let request =
            http::Request::post(&self.path).header("host", &self.host).body(Full::default()).unwrap();
        let response = connection.send_request(request).await.map_err(|e| format!("no answer: {e:?}"))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| format!("broke off: {e:?}"))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if parts.status != 200 {
            return Err(format!("{}: {text}", parts.status));
        }
        if parts.headers.get("connection").is_none_or(|said| said != "close") {
            self.connection = Some(connection);
        }
        Ok(text)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let stream = TcpStream::connect(&self.host).await.map_err(|e| format!("refused: {e}"))?;
        stream.set_nodelay(true).unwrap();
        let (mut send, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| format!("{e:?}"))?;
        tokio::spawn(connection);
        send.ready().await.map_err(|e| format!("closed at once: {e:?}"))?;
        Ok(send)
    }
}
