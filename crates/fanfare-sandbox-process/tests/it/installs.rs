//! What installing dependencies may reach.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use fanfare_sandbox::Runtime;
use fanfare_types::{Contract, RevisionSpec, StartFailureKind};

use crate::cases;
use crate::support::{Lab, ask, block_on, revision};

cases![
    an_installation_reaches_its_index_and_not_the_node,
    a_package_cannot_choose_what_is_mounted,
    a_registry_that_cannot_be_reached_is_no_fault_of_the_revision,
];

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

/// Writes the archive of a package with an install script, which is its argument, to standard output.
const PACKAGE: &str = r#"
import io, json, sys, tarfile
manifest = {"name": "swap", "version": "1.0.0", "scripts": {"install": "sh install.sh"}}
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|gz") as tar:
    for name, text in [("package.json", json.dumps(manifest)), ("install.sh", sys.argv[1])]:
        info = tarfile.TarInfo("package/" + name)
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))
"#;

/// A registry with one package, until the process ends.
fn serve_registry(listener: &TcpListener, package: &[u8]) {
    let port = listener.local_addr().unwrap().port();
    let about = format!(
        r#"{{"name": "swap", "dist-tags": {{"latest": "1.0.0"}}, "versions": {{"1.0.0": {{"name": "swap",
        "version": "1.0.0", "hasInstallScript": true, "scripts": {{"install": "sh install.sh"}},
        "dist": {{"tarball": "http://127.0.0.1:{port}/swap.tgz"}}}}}}}}"#
    );
    serve(listener, &|head| match head.starts_with(b"GET /swap.tgz") {
        true => ("application/octet-stream", package.to_vec()),
        false => ("application/json", about.clone().into_bytes()),
    });
}

/// An index with one package, until the process ends.
fn serve_index(listener: &TcpListener, wheel: &[u8], asked: &std::sync::mpsc::Sender<String>) {
    serve(listener, &|head| {
        asked.send(String::from_utf8_lossy(head).to_ascii_lowercase()).unwrap();
        match head.starts_with(b"GET /greet") {
            true => ("application/zip", wheel.to_vec()),
            false => {
                ("text/html", b"<a href='/greet-1-py3-none-any.whl'>greet-1-py3-none-any.whl</a>".to_vec())
            }
        }
    });
}

/// The type and the body of an answer.
type Page = (&'static str, Vec<u8>);

/// Answers each request with a type and a body, by its head.
fn serve(listener: &TcpListener, answer: &dyn Fn(&[u8]) -> Page) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
            head.push(byte[0]);
        }
        let (kind, body) = answer(&head);
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.write_all(&body));
    }
}

fn an_installation_reaches_its_index_and_not_the_node() {
    let made = Command::new("python3").args(["-c", WHEEL]).output().unwrap();
    assert!(made.status.success());
    let index = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = index.local_addr().unwrap().port();
    let (asked, heads) = std::sync::mpsc::channel();
    std::thread::spawn(move || serve_index(&index, &made.stdout, &asked));
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ARGUMENT, &service.local_addr().unwrap().port().to_string()]);
    for (name, _) in std::env::vars()
        .filter(|(name, _)| name.starts_with("PIP_") || name.to_lowercase().ends_with("_proxy"))
    {
        command.env_remove(name);
    }
    command.env("PIP_INDEX_URL", format!("http://me:canary@127.0.0.1:{port}/simple"));
    let output = command.env("PIP_RETRIES", "0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    service.set_nonblocking(true).unwrap();
    assert!(service.accept().is_err(), "something reached a service of the node");
    let heads: Vec<String> = heads.try_iter().collect();
    assert!(heads.iter().any(|head| head.starts_with("get /simple/greet")), "{heads:?}");
    assert!(!heads.iter().any(|head| head.contains("authorization")), "{heads:?}");
}

fn a_package_cannot_choose_what_is_mounted() {
    let secret = crate::support::directory();
    std::fs::write(secret.path().join("secret.js"), "module.exports = 'canary'").unwrap();
    // The same place is there inside, in the installation's own `/tmp`, so that npm itself notices nothing.
    let place = secret.path().to_str().unwrap();
    let script = format!(
        "mkdir -p {place} && mv /out/node_modules/* {place}/ && rm -r /out/node_modules && ln -s {place} /out/node_modules"
    );
    let made = Command::new("python3").args(["-c", PACKAGE, &script]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = registry.local_addr().unwrap().port();
    std::thread::spawn(move || serve_registry(&registry, &made.stdout));
    with_registry(port, "npm");
}

fn a_registry_that_cannot_be_reached_is_no_fault_of_the_revision() {
    // Free again when this is dropped.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    with_registry(port, "unreachable");
}

/// Runs a test in a process whose environment names a registry.
fn with_registry(port: u16, test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ARGUMENT, test]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.to_lowercase().ends_with("_proxy")) {
        command.env_remove(name);
    }
    command.env("npm_config_registry", format!("http://127.0.0.1:{port}/"));
    let output = command.env("npm_config_fetch_retries", "0").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a test in this process.
pub(crate) fn main(args: &[String]) -> ! {
    match args[0].as_str() {
        "npm" => install_a_package(StartFailureKind::DependenciesFailed, "in the place of node_modules"),
        "unreachable" => install_a_package(StartFailureKind::Node, "no connection to 127.0.0.1"),
        port => reach_the_index(port),
    }
    std::process::exit(0)
}

/// Has a package installed, which fails so.
fn install_a_package(kind: StartFailureKind, said: &str) {
    block_on(async {
        let lab = Lab::new().await;
        let handler =
            "const fs = require('fs'); exports.handler = () => fs.readdirSync('/node_modules').join()";
        let manifest = r#"{"dependencies": {"swap": "1.0.0"}}"#;
        let code = lab.codes.add(lab.dir.path(), &[("f.js", handler), ("package.json", manifest)]);
        let contract = Contract::Node { file: "f.js".into(), handler: "handler".into() };
        let spec = revision(1, Some(code), contract);
        match lab.create(1, &spec).await {
            Ok(started) => panic!("the sandbox sees {:?}", ask(&started.endpoint, "1").await),
            Err(failure) => {
                assert_eq!(failure.kind, kind, "{failure:?}");
                assert!(failure.detail.contains(said), "{failure:?}");
            }
        }
        let left = std::fs::read_dir(lab.dir.path().join("data/deps")).unwrap().count();
        assert_eq!(left, 0, "what was refused is not kept");
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}

fn reach_the_index(port: &str) {
    block_on(async {
        let lab = Lab::new().await;
        let python = |function, list: &str| -> RevisionSpec {
            let code = lab.codes.add(lab.dir.path(), &[("f.py", HANDLER), ("requirements.txt", list)]);
            let contract = Contract::Python { file: "f.py".into(), handler: "handler".into() };
            revision(function, Some(code), contract)
        };
        let started = lab.create(1, &python(1, "greet==1\n")).await.unwrap_or_else(|f| panic!("{f:?}"));
        assert_eq!(ask(&started.endpoint, "1").await.unwrap(), (200, "fetched".to_owned()));
        let list = format!("greet @ http://127.0.0.1:{port}/greet-1-py3-none-any.whl\n");
        let failure = lab.create(2, &python(2, &list)).await.unwrap_err();
        assert_eq!(failure.kind, StartFailureKind::DependenciesFailed, "{failure:?}");
        lab.line("only public addresses").await;
        lab.line("are not handed to installations").await;
        lab.runtime.shutdown().await;
        lab.close().await;
    });
}
