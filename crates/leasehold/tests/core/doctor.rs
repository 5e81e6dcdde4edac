//! What the doctor says: of real servers, good ones and bad ones, and of directories.
#![cfg(all(feature = "redis", feature = "file", target_os = "linux"))]

use leasehold_testkit as common;

use std::os::unix::fs::PermissionsExt;

use common::{home_in_memory, ms};
use leasehold::doctor::{Finding, Report, Verdict, examine};
use leasehold::store::file::File;
use leasehold::{Error, Store};
use leasehold_lab::{Kind, Server, Setup};

/// What a user needs who does nothing but lock.
const LOCKS: &str = "~lock:* ~{lock:* resetchannels &{lock:}:* -@all +eval +evalsha +get +set +del +exists +type \
                     +pexpire +pttl +time +publish +pubsub|numsub +subscribe +scan +hget +hset +hsetnx +hdel +hlen +hincrby \
                     +lindex +linsert +llen +lpop +lpos +lpush +lrange +lrem +rpush +zadd +zrem +zrange \
                     +zremrangebyscore +zscore +ping";

async fn report_on(server: &Server) -> Report {
    examine(&server.url()).await.unwrap()
}

/// The verdict on one thing, and the finding as it is read.
fn on(report: &Report, check: &str) -> (Verdict, String) {
    let found: Vec<&Finding> = report.findings.iter().filter(|finding| finding.check == check).collect();
    let [finding] = found.as_slice() else { panic!("{} of {check}: {report:#?}", found.len()) };
    assert_eq!(
        finding.verdict > Verdict::Good,
        finding.advice.is_some(),
        "advice where it is needed: {finding:?}"
    );
    (finding.verdict, format!("{} → {}", finding.what, finding.advice.as_deref().unwrap_or("nothing")))
}

/// What is not good.
fn troubles(report: &Report) -> Vec<&'static str> {
    report.findings.iter().filter(|it| it.verdict > Verdict::Good).map(|it| it.check).collect()
}

#[tokio::test]
async fn a_server_that_keeps_what_it_is_told_is_good_and_left_as_it_was() {
    for (kind, name) in [(Kind::Redis, "Redis 7."), (Kind::Valkey, "Valkey 9.")] {
        let server = Setup::new(kind).line("appendonly yes").start().unwrap();
        let report = report_on(&server).await;
        assert_eq!((report.store, report.verdict()), ("redis", Verdict::Good), "{report:#?}");
        assert!(on(&report, "server").1.starts_with(name), "{report:#?}");
        assert!(on(&report, "fence").1.contains("none has been given"), "{report:#?}");
        assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), Some(1), "the fence alone");
        let again = report_on(&server).await;
        assert!(on(&again, "fence").1.contains("ago, by the server's clock"), "{again:#?}");
    }
}

#[tokio::test]
async fn what_a_restart_costs_is_said() {
    for (lines, verdict, words) in [
        (["save \"\"", "appendonly no"], Verdict::Caution, "a restart forgets all locks"),
        (["save 3600 1", "appendonly no"], Verdict::Caution, "since the last"),
        (["appendonly yes", "appendfsync everysec"], Verdict::Good, "every second"),
        (["appendonly yes", "appendfsync no"], Verdict::Caution, "when the system likes"),
    ] {
        let server = Setup::new(Kind::Redis).line(lines[0]).line(lines[1]).start().unwrap();
        let (found, text) = on(&report_on(&server).await, "persistence");
        assert_eq!(found, verdict, "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_may_throw_locks_away_is_bad() {
    for (bytes, policy, verdict) in [
        (100 << 20, "volatile-ttl", Verdict::Bad),
        (100 << 20, "allkeys-lru", Verdict::Bad),
        (0, "allkeys-lru", Verdict::Caution),
        (100 << 20, "noeviction", Verdict::Good),
    ] {
        let server = Setup::new(Kind::Redis).line("appendonly yes").memory(bytes, policy).start().unwrap();
        let report = report_on(&server).await;
        let (found, text) = on(&report, "memory");
        assert_eq!((found, report.verdict()), (verdict, verdict), "{text}");
        assert!(verdict == Verdict::Good || text.contains("maxmemory-policy noeviction"), "{text}");
    }
}

#[tokio::test]
async fn a_replica_is_bad_and_names_its_master_which_wants_care() {
    let master = Setup::new(Kind::Redis).line("appendonly yes").start().unwrap();
    let replica = Setup::new(Kind::Redis).line("appendonly yes").replica_of(&master).start().unwrap();
    while replica.info("replication").unwrap()["master_link_status"] != "up" {
        tokio::time::sleep(ms(5)).await;
    }
    let report = report_on(&replica).await;
    let (verdict, text) = on(&report, "role");
    assert!(verdict == Verdict::Bad && text.contains(&master.addr().to_string()), "{text}");
    assert!(text.contains("name its master"), "{text}");
    assert_eq!(troubles(&report), ["role", "lock"], "and it has no right that is lacking: {report:#?}");
    let report = report_on(&master).await;
    assert_eq!(troubles(&report), ["replicas"], "{report:#?}");
    assert!(on(&report, "replicas").1.contains("check fences"), "{report:#?}");
}

#[tokio::test]
async fn a_master_that_waits_for_replicas_is_bad_without_them() {
    let server =
        Setup::new(Kind::Redis).line("appendonly yes").line("min-replicas-to-write 1").start().unwrap();
    let report = report_on(&server).await;
    assert_eq!(troubles(&report), ["replicas", "lock"], "{report:#?}");
    assert!(on(&report, "lock").1.contains("NOREPLICAS"), "{report:#?}");
}

#[tokio::test]
async fn where_scripts_are_forbidden_locks_work_without_and_what_that_costs_is_said() {
    for kind in Kind::ALL {
        let by_rule =
            Setup::new(kind).line("appendonly yes").user("default", "on nopass ~* &* +@all -eval -evalsha");
        let by_name = Setup::new(kind).line("appendonly yes").without("EVAL").without("EVALSHA");
        for setup in [by_rule, by_name] {
            let server = setup.start().unwrap();
            let report = report_on(&server).await;
            assert_eq!(
                (troubles(&report), report.verdict()),
                (vec!["scripts"], Verdict::Caution),
                "{report:#?}"
            );
            let scripts = on(&report, "scripts").1.to_lowercase();
            assert!(scripts.contains("'eval'") && scripts.contains("no order of arrival"), "{report:#?}");
            assert_eq!(server.command(&["DBSIZE"]).unwrap().int(), Some(1), "the fence alone");
            // Whoever insists on them gets no lock.
            let report = examine(&format!("{}?scripts=on", server.url())).await.unwrap();
            assert_eq!(troubles(&report), ["scripts", "rights", "lock"], "{report:#?}");
            assert!(on(&report, "rights").1.contains("may not send EVAL, EVALSHA"), "{report:#?}");
            assert!(on(&report, "rights").1.contains("ACL SETUSER default +eval +evalsha"), "{report:#?}");
        }
    }
}

#[tokio::test]
async fn what_is_lacking_without_scripts_is_named() {
    for kind in Kind::ALL {
        let rule = "on nopass ~* &* +@all -@scripting -watch -exec -pexpire";
        let server = Setup::new(kind).line("appendonly yes").user("default", rule).start().unwrap();
        let report = report_on(&server).await;
        assert_eq!(troubles(&report), ["scripts", "rights", "lock"], "{report:#?}");
        let rights = on(&report, "rights").1;
        assert!(rights.contains("may not send EXEC, PEXPIRE, WATCH"), "{report:#?}");
        assert!(rights.contains("ACL SETUSER default +exec +pexpire +watch"), "{report:#?}");
    }
}

#[tokio::test]
async fn who_may_only_lock_is_told_what_could_not_be_seen() {
    for kind in Kind::ALL {
        let server = Setup::new(kind)
            .line("appendonly yes")
            .user("default", &format!("on nopass {LOCKS}"))
            .start()
            .unwrap();
        let report = report_on(&server).await;
        let unseen = ["server", "role", "replicas", "persistence", "memory", "clients", "settings"];
        assert_eq!(troubles(&report), unseen, "{report:#?}");
        assert_eq!(report.verdict(), Verdict::Caution);
        assert!(unseen.iter().all(|check| on(&report, check).1.contains("could not be seen")), "{report:#?}");
    }
}

#[tokio::test]
async fn the_rights_that_are_lacking_are_named() {
    for kind in Kind::ALL {
        let rules = LOCKS.replace("+zadd ", "").replace("~{lock:* ", "").replace("&{lock:}:* ", "");
        let server = Setup::new(kind)
            .line("appendonly yes")
            .user("default", &format!("on nopass {rules} +acl|whoami"));
        let server = server.start().unwrap();
        let (verdict, text) = on(&report_on(&server).await, "rights");
        assert_eq!(verdict, Verdict::Bad, "{text}");
        for words in
            ["touch all the keys", "publish to waiters", "~lock:* ~{lock:* &{lock:}:*", "SETUSER default"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}

/// Locks work without it.
#[tokio::test]
async fn a_missing_right_to_count_subscribers_is_a_caution() {
    for kind in Kind::ALL {
        let rules = LOCKS.replace("+pubsub|numsub ", "");
        let server = Setup::new(kind)
            .line("appendonly yes")
            .user("default", &format!("on nopass {rules} +acl|whoami"))
            .start()
            .unwrap();
        let (verdict, text) = on(&report_on(&server).await, "rights");
        assert_eq!(verdict, Verdict::Caution, "{text}");
        assert!(text.ends_with("→ `ACL SETUSER default +pubsub|numsub`"), "{text}");
    }
}

#[tokio::test]
async fn a_fence_that_runs_ahead_wants_care_and_a_key_in_its_place_is_bad() {
    let server = Setup::new(Kind::Redis).line("appendonly yes").start().unwrap();
    let url = format!("{}?prefix=x:", server.url());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ahead = format!("{:x}", (now.as_secs() + 3_600) * 1_000_000);
    assert!(server.command(&["SET", "{x:}:fence", &ahead]).unwrap().is_ok());
    let (verdict, text) = on(&examine(&url).await.unwrap(), "fence");
    assert_eq!(verdict, Verdict::Caution, "{text}");
    assert!(text.contains("60 min ahead of the server's clock"), "{text}");
    for command in [vec!["DEL", "{x:}:fence"], vec!["LPUSH", "{x:}:fence", "x"]] {
        server.command(&command).unwrap();
    }
    assert_eq!(on(&examine(&url).await.unwrap(), "fence").0, Verdict::Bad);
}

#[tokio::test]
async fn what_cannot_be_reached_or_does_not_let_us_in_is_an_error_like_any_other() {
    let server = Setup::new(Kind::Redis).password("hunter2").start().unwrap();
    assert!(matches!(examine(&server.url()).await, Err(Error::Refused { .. })));
    let url = server.url();
    server.kill().unwrap();
    assert!(matches!(examine(&url).await, Err(Error::Unreachable { .. })));
    assert!(matches!(examine("gopher:x").await, Err(Error::Invalid { .. })));
}

#[tokio::test]
async fn a_directory_of_ones_own_is_good_and_its_clients_are_counted() {
    let home = home_in_memory("doctor");
    let url = format!("file:{}", home.path().display());
    let store = File::open(home.path()).await.unwrap();
    let report = examine(&url).await.unwrap();
    assert_eq!((report.store, report.verdict()), ("file", Verdict::Good), "{report:#?}");
    assert!(on(&report, "file system").1.contains("tmpfs"), "{report:#?}");
    // A lock that nobody has: its owner is dead.
    let dead = home.path().join("clients/00000000000000aa.lock");
    std::fs::write(&dead, "").unwrap();
    std::fs::set_permissions(&dead, std::fs::Permissions::from_mode(0o600)).unwrap();
    let report = examine(&url).await.unwrap();
    assert!(on(&report, "clients").1.starts_with("1 alive; 1 dead"), "{report:#?}");
    assert!(!dead.exists(), "it was cleared away");
    assert!(store.list("", 10).await.unwrap().is_empty(), "nothing is left");
    assert!(on(&examine(&url).await.unwrap(), "clients").1.starts_with("1 alive →"));
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(examine(&url).await, Err(Error::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_under_two_names_is_no_two_nodes() {
    let nodes: Vec<Server> = (0..2).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let port = nodes[0].addr().port();
    let [a, b] = [0, 1].map(|place| nodes[place].addr().to_string());
    let url = format!("redlock:{a},localhost:{port},{b}?quarantine=off&timeout=3000");
    let report = examine(&url).await.unwrap();
    assert_eq!(report.verdict(), Verdict::Bad, "{report:#?}");
    let named = |finding: &&Finding| finding.what.contains("is the same server as");
    let finding = report.findings.iter().find(named).unwrap();
    assert!(finding.what.contains(&format!("localhost:{port} is the same server as {a}")), "{finding:?}");
    assert_eq!(finding.verdict, Verdict::Bad);
    assert!(
        !report.findings.iter().any(|finding| finding.what.contains("3 of 3 nodes can vote")),
        "{report:#?}"
    );
}
