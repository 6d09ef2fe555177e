//! What installing dependencies may reach.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use fanfare_sandbox::Runtime;
use fanfare_types::{Contract, RevisionSpec, StartFailureKind};

use crate::cases;
use crate::support::{Lab, ask, block_on, revision};

cases![an_installation_reaches_its_index_and_not_the_node];

/// First argument of a process whose environment names an index; the second is the port of something else.
pub(crate) const ARGUMENT: &str = "__installs";

const HANDLER: &str = "import greet\ndef handler(event, context): return greet.WORD";
/// Writes a wheel of the module `greet` to standard output.
const WHEEL: &str = r#"
import io, sys, zipfile
out = io.BytesIO()
with zipfile.ZipFile(out, "w") as z:
    z.writestr("greet.py", "WORD = 'fetched'")
    z.writestr("greet-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: greet\nVersion: 1\n")
    z.writestr("greet-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("greet-1.dist-info/RECORD", "greet.py,,\ngreet-1.dist-info/METADATA,,\ngreet-1.dist-info/WHEEL,,\ngreet-1.dist-info/RECORD,,\n")
sys.stdout.buffer.write(out.getvalue())
"#;

/// An index with one package, until the process ends.
fn serve_index(listener: &TcpListener, wheel: &[u8]) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
            head.push(byte[0]);
        }
        let page = b"<a href='/greet-1-py3-none-any.whl'>greet-1-py3-none-any.whl</a>".to_vec();
        let (kind, body) = match head.starts_with(b"GET /greet") {
            true => ("application/zip", wheel),
            false => ("text/html", page.as_slice()),
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(body));
    }
}

fn an_installation_reaches_its_index_and_not_the_node() {
    let made = Command::new("python3").args(["-c", WHEEL]).output().unwrap();
    assert!(made.status.success());
    let index = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = index.local_addr().unwrap().port();
    std::thread::spawn(move || serve_index(&index, &made.stdout));
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ARGUMENT, &service.local_addr().unwrap().port().to_string()]);
    for (name, _) in std::env::vars()
        .filter(|(name, _)| name.starts_with("PIP_") || name.to_lowercase().ends_with("_proxy"))
    {
        command.env_remove(name);
    }
    command.env("PIP_INDEX_URL", format!("http://127.0.0.1:{port}/simple"));
    let output = command.env("PIP_RETRIES", "0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    service.set_nonblocking(true).unwrap();
    assert!(service.accept().is_err(), "something reached a service of the node");
}

/// Runs the test in this process.
pub(crate) fn main(args: &[String]) -> ! {
    block_on(async {
        let lab = Lab::new().await;
        let python = |function, list: &str| -> RevisionSpec {
            let code = lab.codes.add(lab.dir.path(), &[("f.py", HANDLER), ("requirements.txt", list)]);
            let contract = Contract::Python { file: "f.py".into(), handler: "handler".into() };
            revision(function, Some(code), contract)
        };
        let started = lab.create(1, &python(1, "greet==1\n")).await.unwrap_or_else(|f| panic!("{f:?}"));
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "fetched".to_owned()));
        let list = format!("greet @ http://127.0.0.1:{}/greet-1-py3-none-any.whl\n", args[0]);
        let failure = lab.create(2, &python(2, &list)).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::DependenciesFailed, "{failure:?}");
        lab.line("only public addresses").await;
        lab.runtime.shutdown().await;
        lab.close().await;
    });
    std::process::exit(0)
}
