//! A `file:` store that several users of one machine share. Needs root, to become them.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::common::{Home, Running, said, until};
use rustix::process::Signal;

/// Two members of a group, and one who is none.
const ALICE: u32 = 4_711;
const BOB: u32 = 4_712;
const EVE: u32 = 4_713;
const GROUP: u32 = 5_000;

/// A directory for a store, and its URL.
struct Place {
    home: Home,
    path: PathBuf,
    url: String,
    shared: &'static str,
}

impl Place {
    fn new(shared: &'static str) -> Self {
        let home = Home::in_memory();
        let path = home.path().join("locks");
        std::fs::create_dir(&path).unwrap();
        chown(&path, None, (shared == "group").then_some(GROUP)).unwrap();
        set_mode(&path, if shared == "group" { 0o2770 } else { 0o777 });
        let url = format!("file:{}?shared={shared}", path.display());
        Place { home, path, url, shared }
    }

    fn groups(&self) -> &'static [u32] {
        if self.shared == "group" { &[GROUP] } else { &[] }
    }

    fn run(&self, user: u32, args: &[&str]) -> (i32, String, String) {
        said(self.home.leasehold_as(user, self.groups()).args(["--store", &self.url]).args(args))
    }

    /// Holds `x`, without renewal for as long as any test takes.
    fn start(&self, user: u32) -> Running {
        let args =
            ["run", "--store", &self.url, "--ttl", "1h", "x", "--", "sh", "-c", "echo ready; exec cat"];
        self.home.start_as(user, self.groups(), &args)
    }

    fn holder(&self, user: u32) -> Running {
        let mut running = self.start(user);
        assert_eq!(running.line(), "ready");
        running
    }

    fn waiter(&self, user: u32) -> Running {
        let running = self.start(user);
        until(|| self.run(user, &["inspect", "x"]).1.contains("1. in line"), "a waiter");
        running
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn users_who_share_a_directory_exclude_each_other() {
    for shared in ["group", "all"] {
        let place = Place::new(shared);
        let holder = place.holder(ALICE);
        let (code, _, told) = place.run(BOB, &["run", "-n", "x", "--", "true"]);
        assert_eq!(code, 75, "{told}");
        assert_eq!(place.run(BOB, &["run", "-n", "y", "--", "true"]).0, 0, "another name is free");
        assert_eq!(holder.end().0, 0);
        // And the other way round, in files that the first one made.
        let holder = place.holder(BOB);
        assert_eq!(place.run(ALICE, &["run", "-n", "x", "--", "true"]).0, 75);
        assert_eq!(place.run(0, &["run", "-n", "x", "--", "true"]).0, 75, "root is one of them");
        assert_eq!(holder.end().0, 0);
        let (code, told, _) = place.run(BOB, &["doctor"]);
        assert!(code == 0 && told.contains("shared by"), "{told}");
    }
}

#[test]
fn users_who_come_first_at_the_same_moment_make_one_store() {
    for shared in ["group", "all"] {
        let place = Place::new(shared);
        let start = |user| {
            let args = ["--store", &place.url, "run", "x", "--", "sh", "-c", "echo ready"];
            place.home.start_as(user, place.groups(), &args)
        };
        let all: Vec<Running> = (0..8).map(|n| start(if n % 2 == 0 { ALICE } else { BOB })).collect();
        for running in all {
            let (code, out, told) = running.end();
            assert_eq!((code, out.as_str()), (0, "ready\n"), "{told}");
        }
        let stray = std::fs::read_dir(&place.path)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(stray.count(), 0);
    }
}

#[test]
fn a_waiter_is_woken_by_a_holder_of_another_user_and_by_its_death() {
    for shared in ["group", "all"] {
        let place = Place::new(shared);
        // Without a push it would look again after a third of an hour.
        let holder = place.holder(ALICE);
        let mut waiter = place.waiter(BOB);
        assert_eq!(holder.end().0, 0);
        assert_eq!(waiter.line(), "ready", "woken by a release");
        let mut next = place.waiter(ALICE);
        waiter.signal(Signal::KILL);
        assert_eq!(next.line(), "ready", "woken by a death");
        assert_eq!(next.end().0, 0);
        let (code, told, _) = place.run(ALICE, &["doctor"]);
        assert!(code == 0 && told.contains("clients      0 alive"), "the dead are cleared away: {told}");
    }
}

#[test]
fn who_is_not_in_the_group_is_refused_with_the_reason() {
    let place = Place::new("group");
    assert_eq!(place.run(ALICE, &["run", "x", "--", "true"]).0, 0);
    let as_eve =
        |args: &[&str]| said(place.home.leasehold_as(EVE, &[]).args(["--store", &place.url]).args(args));
    for args in [&["run", "x", "--", "true"][..], &["ls"], &["doctor"]] {
        let (code, _, told) = as_eve(args);
        assert_eq!(code, 69, "{told}");
        assert!(
            told.contains("shared by the members of group 5000, and user 4713 is none; add this user"),
            "{told}"
        );
    }
}

#[test]
fn without_shared_a_store_stays_one_users_own() {
    let home = Home::in_memory();
    let path = home.path().join("locks");
    std::fs::create_dir(&path).unwrap();
    chown(&path, Some(ALICE), None).unwrap();
    set_mode(&path, 0o700);
    let url = format!("file:{}", path.display());
    let run = |user| said(home.leasehold_as(user, &[]).args(["run", "--store", &url, "x", "--", "true"]));
    assert_eq!(run(ALICE).0, 0);
    assert_eq!(std::fs::metadata(path.join("locks.db")).unwrap().mode() & 0o777, 0o600);
    let (code, _, told) = run(0);
    assert!(
        code == 69 && told.contains("belongs to user 4711") && told.contains("`?shared=group`"),
        "{told}"
    );
    // A directory that is shared is none of one user's, and the other way round.
    let place = Place::new("all");
    let bare = place.url.replace("?shared=all", "");
    let (code, _, told) = said(place.home.leasehold().args(["run", "--store", &bare, "x", "--", "true"]));
    assert!(code == 69 && told.contains("is open to other users (mode 777)"), "{told}");
    let (code, _, told) =
        said(home.leasehold().args(["run", "--store", &format!("{url}?shared=all"), "x", "--", "true"]));
    assert!(
        code == 69 && told.contains("has mode 700, and a directory that is shared like this has 777"),
        "{told}"
    );
}

#[test]
fn a_shared_store_that_is_opened_in_another_way_gets_no_advice_to_change_its_mode() {
    for (shared, other) in [("group", "all"), ("all", "group")] {
        let place = Place::new(shared);
        let run = |url: &str| said(place.home.leasehold().args(["run", "--store", url, "x", "--", "true"]));
        assert_eq!(run(&place.url).0, 0);
        let bare = format!("file:{}", place.path.display());
        for url in [bare.clone(), format!("{bare}?shared={other}")] {
            let (code, _, told) = run(&url);
            let advice = format!("this store is shared; write `{}`", place.url);
            assert!(code == 69 && told.contains(&advice) && !told.contains("chmod"), "{told}");
        }
        // A store of one user whose directory was opened by mistake is not shared.
        set_mode(&place.path.join("locks.db"), 0o600);
        let (code, _, told) = run(&bare);
        assert!(code == 69 && told.contains("`chmod 700 "), "{told}");
    }
}

#[test]
fn a_directory_to_share_is_made_by_hand_and_has_the_right_mode() {
    let home = Home::in_memory();
    let path = home.path().join("locks");
    let run =
        |shared: &str| home.run(&format!("run x --store file:{}?shared={shared} -- true", path.display()));
    for (shared, how) in [("group", "install -d -m 2770 -g GROUP /"), ("all", "install -d -m 777 /")] {
        let (code, _, told) = run(shared);
        assert!(code == 69 && told.contains(how), "{told}");
        assert!(!path.exists());
    }
    std::fs::create_dir(&path).unwrap();
    for (mode, shared) in
        [(0o755, "all"), (0o1777, "all"), (0o770, "group"), (0o2777, "group"), (0o3770, "group")]
    {
        set_mode(&path, mode);
        let (code, _, told) = run(shared);
        assert!(code == 69 && told.contains(&format!("has mode {mode:o}, and a directory")), "{told}");
    }
    let (code, _, told) = home.run("run x --store file:/etc?shared=group -- true");
    assert!(code == 69 && !told.contains("chmod") && told.contains("/etc/leasehold`"), "{told}");
}

#[test]
fn every_file_is_open_to_those_who_share_it_whatever_the_umask() {
    for (shared, mode, folder) in [("group", 0o660, 0o2770), ("all", 0o666, 0o777)] {
        let place = Place::new(shared);
        let _holder = place.holder(ALICE);
        let mut seen = 0;
        for directory in [place.path.clone(), place.path.join("clients")] {
            for entry in std::fs::read_dir(directory).unwrap() {
                let about = entry.as_ref().unwrap().path().symlink_metadata().unwrap();
                let right = if about.is_dir() { folder } else { mode };
                assert_eq!(about.mode() & 0o7777, right, "{entry:?}");
                assert!(shared != "group" || about.gid() == GROUP, "{entry:?}");
                seen += 1;
            }
        }
        assert_eq!(seen, 8, "a database of three files, a gate, a folder, and a client's three");
    }
}

#[test]
fn a_member_can_lead_nobody_to_files_outside_the_directory() {
    let place = Place::new("group");
    assert_eq!(place.run(ALICE, &["run", "x", "--", "true"]).0, 0);
    let target = place.home.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    set_mode(&target, 0o600);
    let before = target.metadata().unwrap();
    // Bob puts a link in the place of each file, and root comes along.
    for file in ["gate", "locks.db", "locks.db-wal", "locks.db-shm"] {
        for hard in [false, true] {
            let (path, kept) = (place.path.join(file), place.path.join("kept"));
            std::fs::rename(&path, &kept).unwrap();
            if hard {
                std::fs::hard_link(&target, &path).unwrap()
            } else {
                symlink(&target, &path).unwrap()
            }
            let (code, _, told) = place.run(0, &["run", "x", "--", "true"]);
            assert_eq!(code, 69, "{file}: {told}");
            assert!(told.contains(&format!("/{file}` ")), "{file}: {told}");
            std::fs::remove_file(&path).unwrap();
            std::fs::rename(&kept, &path).unwrap();
        }
    }
    let after = target.metadata().unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!((before.mode(), before.uid()), (after.mode(), after.uid()));
    // A pipe in the place of a client's lock would be waited for, and a link in that of its socket would be followed.
    let clients = place.path.join("clients");
    let made =
        std::process::Command::new("mkfifo").arg(clients.join("00000000000000aa.lock")).status().unwrap();
    assert!(made.success());
    let outside = place.home.path().join("outside");
    let socket = std::os::unix::net::UnixDatagram::bind(&outside).unwrap();
    socket.set_nonblocking(true).unwrap();
    set_mode(&outside, 0o777);
    let holder = place.holder(ALICE);
    let waiter = place.waiter(BOB);
    for entry in std::fs::read_dir(&clients).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "poke") {
            assert!(path.symlink_metadata().unwrap().file_type().is_socket());
            std::fs::remove_file(&path).unwrap();
            symlink(&outside, &path).unwrap();
        }
    }
    assert_eq!(holder.end().0, 0);
    assert!(socket.recv(&mut [0]).is_err(), "nothing was sent through the link");
    drop(waiter);
}

#[test]
fn what_a_member_adds_to_the_schema_is_not_run() {
    let place = Place::new("all");
    assert_eq!(place.run(ALICE, &["run", "x", "--", "true"]).0, 0);
    let database = rusqlite::Connection::open(place.path.join("locks.db")).unwrap();
    database
        .execute_batch("CREATE TABLE seen (name); CREATE TRIGGER spy AFTER INSERT ON holding BEGIN INSERT INTO seen VALUES (new.token); END")
        .unwrap();
    drop(database);
    assert_eq!(place.run(BOB, &["run", "x", "--", "true"]).0, 0);
    let database = rusqlite::Connection::open(place.path.join("locks.db")).unwrap();
    let seen: i64 = database.query_row("SELECT count(*) FROM seen", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, 0);
}
