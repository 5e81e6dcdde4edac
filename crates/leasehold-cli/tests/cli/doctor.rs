//! `leasehold doctor` as a user meets it.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Home, said};
use leasehold_lab::{Kind, Setup};
use serde_json::Value;

#[test]
fn a_good_store_is_said_to_be_one_in_columns_without_colours() {
    let home = Home::in_memory();
    assert_eq!(home.run("run x -- true").0, 0);
    let (code, told, error) = home.run("doctor");
    assert_eq!((code, error.as_str()), (0, ""), "{told}");
    assert!(told.lines().all(|line| line.starts_with("good     ")), "{told}");
    assert!(told.starts_with("good     directory    /"), "{told}");
    assert!(told.contains("\ngood     lock         a lock was taken and given back in "), "{told}");
    assert!(!told.contains('\u{1b}'), "{told}");
    let (code, told, _) = home.run("doctor --color always");
    assert!(code == 0 && told.starts_with("\u{1b}[32mgood"), "{told}");
}

#[test]
fn the_exit_code_is_as_bad_as_the_worst_and_advice_stands_below() {
    let home = Home::new();
    for (setup, code, line) in [
        (Setup::new(Kind::Redis).line("appendonly yes"), 0, "good     role         master\n"),
        (
            Setup::new(Kind::Redis),
            1,
            "caution  persistence  none: a restart forgets all locks, so that two may hold one for as long as a TTL\n                      → `appendonly yes`",
        ),
        (
            Setup::new(Kind::Redis).memory(100 << 20, "allkeys-lru"),
            2,
            "                      → `maxmemory-policy noeviction`\n",
        ),
    ] {
        let server = setup.start().unwrap();
        let (ended, told, error) = home.run(&format!("doctor --store {}", server.url()));
        assert_eq!((ended, error.as_str()), (code, ""), "{told}");
        assert!(told.contains(line), "{told}");
    }
    let (code, out, told) = home.run("doctor --store redis://127.0.0.1:1/");
    assert!(code == 69 && out.is_empty() && told.contains("the redis store gave no answer"), "{told}");
}

#[test]
fn machines_get_the_same_as_json() {
    let home = Home::new();
    let server = Setup::new(Kind::Valkey).memory(100 << 20, "volatile-ttl").start().unwrap();
    let told =
        said(home.leasehold().args(["doctor", "--output", "json"]).env("LEASEHOLD_STORE", server.url()));
    assert_eq!((told.0, told.2.as_str()), (2, ""));
    let report: Value = serde_json::from_str(&told.1).unwrap();
    assert_eq!((report["store"].as_str(), report["verdict"].as_str()), (Some("redis"), Some("bad")));
    let memory = report["findings"].as_array().unwrap().iter().find(|it| it["check"] == "memory").unwrap();
    assert_eq!(memory["verdict"], "bad");
    assert_eq!(memory["advice"], "`maxmemory-policy noeviction`");
    assert!(memory["what"].as_str().unwrap().contains("may be thrown away"), "{memory}");
}

#[test]
fn a_store_that_does_not_exist_yet_is_not_made_and_the_doctor_says_whether_it_can_be() {
    let home = Home::in_memory();
    let (code, told, _) = home.run("doctor");
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("/leasehold does not exist yet; the first lock makes it"), "{told}");
    assert_eq!(home.run("ls"), (0, String::new(), String::new()));
    assert_eq!(home.run("inspect x"), (0, "x is free\n".to_owned(), String::new()));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "nothing was made");
    // Somebody who may not write here.
    let store = format!("file:{}", home.path().join("a/b").display());
    let (code, told, _) = said(home.leasehold_as(4_711, &[]).args(["doctor", "--store", &store]));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("/a/b does not exist yet, and cannot be made in /"), "{told}");
    // A directory without a store in it stays so.
    std::fs::create_dir_all(home.store()).unwrap();
    std::fs::set_permissions(home.store(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!((home.run("ls").0, home.run("doctor").0), (0, 0));
    assert_eq!(std::fs::read_dir(home.store()).unwrap().count(), 0, "nothing was made");
}
