//! A password is in nothing that anybody reads: not in logs, not in errors, not in what is printed of a value.
//!
//! In a process of its own: the log subscriber is that of the whole process.
#![cfg(feature = "redis")]

use leasehold_testkit as common;

use common::child_test;
use common::log_capture::LogCapture;
use leasehold::store::redis::Redis;
use leasehold::{Options, Password};
use leasehold_lab::{Kind, Setup};

const CANARY: &str = "c4nary-In-The-Mine";

/// Everything a client does, and the store examined; with the connection lost in between.
async fn used(log: &LogCapture, server: &leasehold_lab::Server, options: Options, url: &str) {
    log.note(&options);
    let locks = options.clone().connect(url).await.unwrap();
    log.note(&locks);
    let lease = locks.mutex("x").lock().await.unwrap();
    log.note(&lease);
    for user in ["default", "alice"] {
        server.command(&["CLIENT", "KILL", "USER", user]).unwrap();
    }
    // It finds its way back, by the same password.
    while locks.inspect("x").await.is_err() {}
    log.note(&locks.inspect("x").await.unwrap());
    lease.release().await.unwrap();
    locks.close().await;
    log.note(&options.examine(url).await.unwrap());
}

#[test]
fn a_password_is_shown_nowhere() {
    child_test!(a_password_is_shown_nowhere).in_own_process(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(shows_no_password());
    });
}

async fn shows_no_password() {
    let log = LogCapture::of_process();
    log.note(&Password::from(CANARY));
    let with = || Options::default().password(CANARY);

    for kind in Kind::ALL {
        let server = Setup::new(kind)
            .password(CANARY)
            .user("alice", &format!("on >{CANARY} ~* &* +@all"))
            .start()
            .unwrap();
        let addr = server.addr();
        used(&log, &server, Options::default(), &format!("redis://:{CANARY}@{addr}/")).await;
        used(&log, &server, with(), &format!("redis://{addr}/")).await;
        used(&log, &server, Options::default(), &format!("redis://alice:{CANARY}@{addr}/")).await;
        used(&log, &server, with(), &format!("redis://alice@{addr}/")).await;
        let socket = server.socket();
        used(&log, &server, with(), &format!("redis+unix://{}", socket.display())).await;
        log.note(&Redis::open(&format!("redis://:{CANARY}@{addr}/")).await.unwrap());
        assert!(log.text().contains("connected to the redis store again"), "the log is heard");
    }

    // A server without the command that says who one is repeats all of it in its refusal.
    let silent = Setup::new(Kind::Redis).password(CANARY).without("HELLO").start().unwrap();
    let long = CANARY.repeat(20);
    let other = Setup::new(Kind::Redis).password("another").start().unwrap();
    let mut refused = 0;
    for (options, url) in [
        (with(), silent.url()),
        (Options::default(), format!("redis://:{long}@{}", silent.addr())),
        (with(), other.url()),
        (Options::default(), format!("redis://bob:{CANARY}@{}", other.addr())),
        (with(), "redis://127.0.0.1:1/".to_owned()),
        (Options::default(), format!("redis://:{CANARY}@127.0.0.1:1/")),
        (Options::default(), format!("redis://:{CANARY}@no.such.host.invalid/")),
        (Options::default(), format!("redis://:{CANARY}@127.0.0.1:port/")),
        (Options::default(), format!("redis://:{CANARY}@[/")),
        (Options::default(), format!("redis://:{CANARY}@127.0.0.1/?timeout=soon")),
        (Options::default(), format!("redis://:pass?{CANARY}&x@127.0.0.1/")),
        (Options::default(), format!("redlock:a,b,u:pass?{CANARY}=1&x=2@127.0.0.1")),
        (Options::default(), format!("redis+unix:///nowhere?pass={CANARY}")),
        (Options::default(), format!("gopher://:{CANARY}@h/")),
        (Options::default(), CANARY.to_owned()),
        (with(), format!("redis://:{CANARY}@{}", silent.addr())),
        (with(), "memory:".to_owned()),
    ] {
        let error = options.clone().connect(&url).await.unwrap_err();
        log.note(&error);
        log.note(&error.to_string());
        log.note(&options.examine(&url).await.unwrap_err());
        refused += 1;
    }
    assert_eq!(refused, 17);
    let text = log.text();
    for line in text.lines() {
        assert!(!line.contains(&CANARY[..8]), "{line}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_password_is_given_once_and_only_where_one_is_wanted() {
    let server = Setup::new(Kind::Redis).password(CANARY).start().unwrap();
    let twice = format!("redis://:{CANARY}@{}/", server.addr());
    let error = Options::default().password(CANARY).connect(&twice).await.unwrap_err();
    assert!(error.to_string().contains("the URL has one too; give it in one place"), "{error}");
    let error = Options::default().password(CANARY).connect("memory:").await.unwrap_err();
    assert!(error.to_string().contains("a store of this kind has none"), "{error}");
    let error = Options::default().connect(&server.url()).await.unwrap_err();
    assert!(error.to_string().contains("it wants a password"), "{error}");
    let error = Options::default().password("wrong").connect(&server.url()).await.unwrap_err();
    assert!(error.to_string().contains("check user and password"), "{error}");
}

#[test]
fn a_password_that_travels_in_plain_text_is_warned_about() {
    let warning = |options: &Options, url: &str| options.warning(url).is_some();
    let (with, without) = (Options::default().password(CANARY), Options::default());
    for url in ["redis://10.0.0.1/", "redis://db:6379/0", "valkey://alice@db/"] {
        assert!(warning(&with, url) && !warning(&without, url), "{url}");
    }
    assert!(warning(&without, &format!("redis://:{CANARY}@db/")));
    assert!(!with.warning("redis://db/").unwrap().contains(CANARY));
    for url in [
        "redis://127.0.0.1/",
        "redis://localhost:1/",
        "redis://[::1]/",
        "redis+unix:///s",
        "memory:",
        "nonsense",
    ] {
        assert!(!warning(&with, url), "{url}");
    }
}
