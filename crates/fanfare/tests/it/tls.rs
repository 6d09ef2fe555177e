//! Roles that show a certificate.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::run::command;

/// Ten times what anything here should take.
const SOON: Duration = Duration::from_secs(10);
const FREE: &str = "127.0.0.1:0";

/// A fresh certificate and its key, in the files that [`TLS`] names.
fn write_pair(dir: &Path) {
    let made = rcgen::generate_simple_self_signed(["hello.example".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(dir.join("key.pem"), private).unwrap();
}

const TLS: [&str; 4] = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];

/// The first line with this in it.
async fn line_with(lines: &mut (impl AsyncBufRead + Unpin), part: &str) -> String {
    let found = async {
        loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).await.unwrap() > 0, "it ended without {part:?}");
            if line.contains(part) {
                return line;
            }
        }
    };
    tokio::time::timeout(SOON, found).await.unwrap_or_else(|_| panic!("no {part:?}"))
}

fn data_plane(dir: &Path) -> Child {
    let mut command =
        command("", &["data-plane", "--listen", FREE, "--run-dir", "run", "--data-dir", "data"]);
    command.args(["--control-plane", "http://127.0.0.1:1"]).args(TLS).current_dir(dir);
    command.env("RUST_LOG", "info").spawn().unwrap()
}

async fn signal(child: &Child, name: &str) {
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().await.unwrap().success());
}

/// What curl gets that trusts the certificate in the file.
async fn curl(dir: &Path, url: &str, path: &str) -> Option<String> {
    let port = url.trim().rsplit(':').next().unwrap();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--noproxy", "*", "--cacert", "cert.pem"]).current_dir(dir);
    curl.args(["--resolve", &format!("hello.example:{port}:127.0.0.1")]);
    let Ok(output) = curl.arg(format!("https://hello.example:{port}{path}")).output().await else {
        eprintln!("SKIPPED: there is no curl");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn a_hangup_reads_the_certificate_again() {
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path());
    let mut child = data_plane(dir.path());
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let url = line_with(&mut out, "https://").await;
    for _ in 0..2 {
        signal(&child, "HUP").await;
        line_with(&mut err, "clients are shown a new certificate").await;
        if let Some(answer) = curl(dir.path(), &url, "/_fanfare/health").await {
            assert!(answer.contains("not-synced"), "{answer}");
        }
        write_pair(dir.path());
    }
    // The one on the disk is newer than the one that is shown.
    signal(&child, "HUP").await;
    line_with(&mut err, "clients are shown a new certificate").await;
    type Break = fn(&Path);
    let breaks: [(&str, Break); 4] = [
        ("key.pem has no private key", |dir| std::fs::write(dir.join("key.pem"), "nonsense").unwrap()),
        ("does not belong to the certificate", |dir| {
            let shown = std::fs::read(dir.join("cert.pem")).unwrap();
            write_pair(dir);
            std::fs::write(dir.join("cert.pem"), shown).unwrap();
        }),
        ("key.pem", |dir| std::fs::remove_file(dir.join("key.pem")).unwrap()),
        ("key.pem", |dir| {
            write_pair(dir);
            let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(dir.join("key.pem"), readable).unwrap();
        }),
    ];
    let shown = std::fs::read(dir.path().join("cert.pem")).unwrap();
    for (why, break_it) in breaks {
        break_it(dir.path());
        signal(&child, "HUP").await;
        let said = line_with(&mut err, "cannot be").await;
        assert!(said.contains(why) && said.contains("clients are shown the old one"), "{said}");
        let latest = std::fs::read(dir.path().join("cert.pem")).unwrap();
        std::fs::write(dir.path().join("cert.pem"), &shown).unwrap();
        if let Some(answer) = curl(dir.path(), &url, "/_fanfare/health").await {
            assert!(answer.contains("not-synced"), "{why}: {answer}");
        }
        std::fs::write(dir.path().join("cert.pem"), latest).unwrap();
    }
    write_pair(dir.path());
    signal(&child, "HUP").await;
    line_with(&mut err, "clients are shown a new certificate").await;
    curl(dir.path(), &url, "/_fanfare/health").await;
    signal(&child, "TERM").await;
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn up_shows_a_certificate_on_the_port_of_functions() {
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path());
    let args = ["up", "--emulate", "1", "--listen", FREE, "--api-listen", FREE, "--grpc-listen", FREE];
    let mut command = command("", &args);
    command.args(["--run-dir", "run", "--data-dir", "data"]).args(TLS).current_dir(dir.path());
    let mut child = command.env("FANFARE_LOG", "info").spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let plain = line_with(&mut out, "functions ").await;
    let url = line_with(&mut out, "with TLS ").await;
    let address =
        |line: &str| line.split("://").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    assert_eq!(address(&plain), address(&url), "one port");
    if let Some(answer) = curl(dir.path(), &url, "/_fanfare/health").await {
        assert_eq!(answer, "ok\n");
    }
    let _ = line_with(&mut out, "nodes ").await;
    write_pair(dir.path());
    signal(&child, "HUP").await;
    line_with(&mut err, "clients are shown a new certificate").await;
    if let Some(answer) = curl(dir.path(), &url, "/_fanfare/health").await {
        assert_eq!(answer, "ok\n");
    }
    signal(&child, "TERM").await;
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_is_a_mistake_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    write_pair(dir.path());
    std::fs::write(dir.path().join("cert.pem"), "nothing").unwrap();
    let output = data_plane(dir.path()).wait_with_output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cert.pem has no certificate in PEM form"), "{said}");
    for half in [&TLS[..2], &TLS[2..]] {
        let output = command("", &["data-plane"]).args(half).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{half:?}");
    }
}
