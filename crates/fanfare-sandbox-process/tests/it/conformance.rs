//! The suite that every runtime passes, over programs on `$PORT`.

use std::sync::Arc;

use fanfare_sandbox::conformance::{
    Ask, Behaviour, FAILING_LINE, FAILING_STATUS, SLOW_LINE, Subject, WAITING_LINE, suite,
};
use fanfare_sandbox::{ExitSink, LogSink, Outlets, Runtime};
use fanfare_sandbox_process::ProcessRuntime;
use fanfare_types::{Contract, RevisionSpec, SandboxId};
use futures_util::future::BoxFuture;

use crate::cases;
use crate::support::{Codes, ask, block_on, directory, options, revision, traces};

cases![conforms];

struct Bench {
    dir: tempfile::TempDir,
    codes: Arc<Codes>,
    code: fanfare_types::CodeDigest,
}

/// Does as it is told, by its argument and then by requests.
const PROGRAM: &str = r#"
import os, signal, socket, sys, time
mode = sys.argv[1]
if mode == "fails":
    print("FAILING_LINE", flush=True)
    sys.exit(FAILING_STATUS)
if mode == "waits":
    print("WAITING_LINE", flush=True)
    signal.pause()
busy, ending = False, False
def end(*_):
    global ending
    ending = True
    if not busy:
        os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else end)
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
while not ending:
    connection, _ = listener.accept()
    busy = True
    request = connection.recv(65536).decode()
    while "\r\n\r\n" not in request or not request.endswith("."):
        request += connection.recv(65536).decode()
    order = request.split("\r\n\r\n")[1].rstrip(".").split(" ")
    if order[0] == "exit":
        os._exit(int(order[1]))
    if order[0] == "slow":
        print("SLOW_LINE", flush=True)
        time.sleep(float(order[1]))
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    connection.close()
    busy = False
"#;

impl Bench {
    fn new() -> Self {
        let (dir, codes) = (directory(), Arc::<Codes>::default());
        let program = PROGRAM
            .replace("FAILING_LINE", FAILING_LINE)
            .replace("FAILING_STATUS", &FAILING_STATUS.to_string())
            .replace("WAITING_LINE", WAITING_LINE)
            .replace("SLOW_LINE", SLOW_LINE);
        let code = codes.add(dir.path(), &[("m.py", &program)]);
        Bench { dir, codes, code }
    }
}

impl Subject for Bench {
    fn start(&self, exits: ExitSink, logs: LogSink) -> BoxFuture<'static, Arc<dyn Runtime>> {
        let (options, code) = (options(self.dir.path()), self.codes.clone());
        Box::pin(async move {
            let runtime = ProcessRuntime::start(options, Outlets { exits, logs, code }).await.unwrap();
            runtime as Arc<dyn Runtime>
        })
    }

    fn revision(&self, behaviour: Behaviour) -> Arc<RevisionSpec> {
        let (function, mode) = match behaviour {
            Behaviour::Serves => (1, "serves"),
            Behaviour::Stubborn => (2, "stubborn"),
            Behaviour::FailsToStart => (3, "fails"),
            Behaviour::NeverReady { start_timeout } => (4 + start_timeout.as_millis() as u32, "waits"),
        };
        let command = ["python3", "m.py", mode].map(str::to_owned).to_vec();
        let contract = Contract::Http { command, inherits_listener: false, protocol: Default::default() };
        let mut spec = revision(function, Some(self.code), contract);
        if let Behaviour::NeverReady { start_timeout } = behaviour {
            spec.timeouts.start = start_timeout;
        }
        Arc::new(spec)
    }

    fn ask(&self, _: SandboxId, endpoint: Arc<str>, what: Ask) -> BoxFuture<'static, Result<u16, String>> {
        let order = match what {
            Ask::Answer => "answer .".to_owned(),
            Ask::Slow(time) => format!("slow {}.", time.as_secs_f64()),
            Ask::Exit(status) => format!("exit {status}."),
        };
        Box::pin(async move {
            ask(&endpoint, &order).await.map(|(status, _)| status).map_err(|error| error.to_string())
        })
    }

    fn abandon(&self, runtime: Arc<dyn Runtime>) -> BoxFuture<'static, bool> {
        // The runtime lives in this process; `deaths` kills one that does not.
        Box::pin(async move {
            runtime.shutdown().await;
            false
        })
    }

    fn leftovers(&self) -> Vec<String> {
        traces(&self.dir.path().join("run"))
    }

    fn patience(&self) -> u32 {
        crate::support::patience()
    }
}

fn conforms() {
    block_on(suite(|| async { Arc::new(Bench::new()) as Arc<dyn Subject> }));
}
