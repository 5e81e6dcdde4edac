//! `rediss:`: the conformance suite over TLS, and whom a client believes.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use common::cases::every_case_holds;
use leasehold::doctor::{Verdict, examine};
use leasehold::store::redis::Redis;
use leasehold::{Error, Options};
use leasehold_lab::{Authority, Kind, Server, Setup, Tls};

use crate::conformance::OnServer;

const CANARY: &str = "c4nary-In-The-Mine";

fn start(tls: Tls) -> Server {
    Setup::new(Kind::Redis).tls(tls).start().unwrap()
}

/// `rediss://HOST:PORT/?ca=FILE`
fn url(host: &str, server: &Server, authority: &Authority) -> String {
    let port = server.tls_addr().unwrap().port();
    format!("rediss://{host}:{port}/?ca={}", authority.file().display())
}

/// What a user reads where no connection comes about.
async fn refused(url: &str) -> (Error, String) {
    let error = leasehold::connect(url).await.unwrap_err();
    let examined = examine(url).await.unwrap_err();
    assert_eq!(error, examined, "the doctor says the same");
    let text = error.to_string();
    (error, text)
}

async fn is_untrusted(url: &str, words: &str) {
    let (error, text) = refused(url).await;
    assert!(matches!(error, Error::Untrusted { .. }), "{error:?}");
    assert!(text.contains(words), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_holds_over_tls() {
    let authority = Authority::new().unwrap();
    let server = start(authority.server(&["127.0.0.1"]).unwrap());
    every_case_holds(OnServer(format!("{}&timeout=500", url("127.0.0.1", &server, &authority)))).await;
}

#[tokio::test]
async fn a_server_is_believed_by_its_name_and_its_number() {
    let authority = Authority::new().unwrap();
    let server = start(authority.server(&["localhost", "127.0.0.1"]).unwrap());
    for url in [
        url("localhost", &server, &authority),
        url("127.0.0.1", &server, &authority),
        url("localhost", &server, &authority).replace("rediss:", "valkeys:"),
        url("localhost", &server, &authority).replace("rediss:", "REDISS:"),
    ] {
        let locks = leasehold::connect(&url).await.unwrap();
        locks.mutex("x").lock().await.unwrap().release().await.unwrap();
        locks.close().await;
    }
}

#[tokio::test]
async fn a_certificate_by_a_stranger_is_not_believed() {
    let (authority, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let server = start(stranger.server(&["127.0.0.1"]).unwrap());
    is_untrusted(&url("127.0.0.1", &server, &authority), "its certificate is signed by nobody in `").await;
    let plain = format!("rediss://{}", server.tls_addr().unwrap());
    is_untrusted(&plain, "by nobody this machine trusts; name the file of its authority with `?ca=FILE`")
        .await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_believed() {
    let authority = Authority::new().unwrap();
    let server = start(authority.server(&["redis.example", "10.0.0.1"]).unwrap());
    let words =
        "its certificate is not for `localhost` but for redis.example, 10.0.0.1; use a name that is in it";
    is_untrusted(&url("localhost", &server, &authority), words).await;
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_not_believed() {
    let authority = Authority::new().unwrap();
    let server = start(authority.expired(&["127.0.0.1"]).unwrap());
    is_untrusted(&url("127.0.0.1", &server, &authority), "its certificate has expired; renew it there").await;
}

#[tokio::test]
async fn nobody_is_believed_without_proof() {
    let authority = Authority::new().unwrap();
    let server = start(authority.server(&["127.0.0.1"]).unwrap());
    let plain = format!("rediss://{}/", server.tls_addr().unwrap());
    for url in [format!("{plain}#insecure"), format!("{plain}?prefix=a#insecure"), format!("{plain}#")] {
        let (error, text) = refused(&url).await;
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(text.contains("could give one lock to two"), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_one() {
    let (authority, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let tls = Tls { asks_clients: true, ..authority.server(&["127.0.0.1"]).unwrap() };
    let server = start(tls);
    let without = url("127.0.0.1", &server, &authority);
    let (error, text) = refused(&without).await;
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(text.contains("it wants a client certificate; give one with `?cert=FILE&key=FILE`"), "{text}");

    let with = |(cert, key): (std::path::PathBuf, std::path::PathBuf)| {
        format!("{without}&cert={}&key={}", cert.display(), key.display())
    };
    let (error, text) = refused(&with(stranger.client().unwrap())).await;
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(text.contains("it does not accept the client certificate in `"), "{text}");

    let locks = leasehold::connect(&with(authority.client().unwrap())).await.unwrap();
    let lease = locks.mutex("x").lock().await.unwrap();
    // What has been renewed since is what the next connection is made with.
    authority.client().unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    while locks.inspect("x").await.is_err() {}
    lease.release().await.unwrap();
}

#[tokio::test]
async fn files_that_are_not_what_they_should_be_are_named() {
    let authority = Authority::new().unwrap();
    let server = start(authority.server(&["127.0.0.1"]).unwrap());
    let (cert, key) = authority.client().unwrap();
    let other = Authority::new().unwrap().client().map(|(_, key)| std::fs::read(key).unwrap()).unwrap();
    let (empty, mixed) = (authority.folder().join("empty.pem"), authority.folder().join("mixed.pem"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&mixed, other).unwrap();
    let (cert, key, empty, mixed) = (cert.display(), key.display(), empty.display(), mixed.display());
    let tls = format!("rediss://{}/", server.tls_addr().unwrap());
    for (url, words) in [
        (format!("{tls}?ca=/nowhere/ca.pem"), "`/nowhere/ca.pem`: it cannot be read"),
        (format!("{tls}?ca={empty}"), "empty.pem`: there is no certificate in it"),
        (format!("{tls}?ca={key}"), "client.key`: there is no certificate in it"),
        (format!("{tls}?cert={cert}"), "it takes its key too: write cert=FILE&key=FILE"),
        (format!("{tls}?key={key}"), "it takes its certificate too"),
        (format!("{tls}?cert={cert}&key={cert}"), "client.crt`: there is no key in it that can be used"),
        (format!("{tls}?cert={cert}&key={mixed}"), "mixed.pem`: it does not go with the certificate"),
        (format!("{}?ca={cert}", server.url()), "it is for TLS: write rediss://"),
    ] {
        let (error, text) = refused(&url).await;
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn whoever_takes_one_port_for_the_other_is_told() {
    let authority = Authority::new().unwrap();
    let server = start(authority.server(&["127.0.0.1"]).unwrap());
    let (_, text) = refused(&format!("rediss://{}/?timeout=300", server.addr())).await;
    assert!(text.contains("does not speak TLS; name its TLS port, or write `redis://`"), "{text}");
    let (_, text) = refused(&format!("redis://{}/?timeout=300", server.tls_addr().unwrap())).await;
    assert!(text.contains("if that is its TLS port, write `rediss://`"), "{text}");
}

#[tokio::test]
async fn a_password_is_not_exposed_over_tls_and_shown_nowhere() {
    let authority = Authority::new().unwrap();
    let tls = authority.server(&["127.0.0.1"]).unwrap();
    let server = Setup::new(Kind::Redis).tls(tls).password(CANARY).start().unwrap();
    let (near, far) = (url("127.0.0.1", &server, &authority), "rediss://db.example/");
    let options = Options::default().password(CANARY);
    assert_eq!(options.warning(far), None, "nobody on the way can read it");
    let report = options.clone().examine(&near).await.unwrap();
    let network = report.findings.iter().find(|finding| finding.check == "network").unwrap();
    assert_eq!((network.verdict, network.what.as_str()), (Verdict::Good, "encrypted"));

    let port = server.tls_addr().unwrap().port();
    let wrong = format!("rediss://:{CANARY}{CANARY}@127.0.0.1:{port}/?ca={}", authority.file().display());
    let stranger = format!("rediss://:{CANARY}@127.0.0.1:{port}/");
    let insecure = format!("rediss://:{CANARY}@127.0.0.1:{port}/#insecure");
    let store = Redis::open(&wrong.replacen(CANARY, "", 1)).await.unwrap();
    let mut shown = format!("{store:?} {report:?} {:?}", options.connect(&near).await.unwrap());
    for url in [wrong, stranger, insecure] {
        let (error, text) = refused(&url).await;
        shown.push_str(&format!("{error:?} {text}"));
    }
    assert!(!shown.contains(&CANARY[..8]), "{shown}");
}
