//! What goes wrong around the file store: a full disk, one that turns read-only, damage, files taken away under a running
//! process, a stranger's files, a reboot. Each is a clear error or a clean recovery.
//!
//! The faults are real. Each test is run in a process of its own with a mount namespace of its own, so that whatever it
//! mounts ends with it; that takes root. No task of that process, or of those it starts, may panic.

use leasehold_testkit as common;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::child::ChildTest;
use common::child_test;
use common::remote::{self, Remote};
use common::{Home, home, ms, secs};
use leasehold::store::file::File;
use leasehold::{Error, Event, Fence, Locks, Loss, Options, Store};

const TTL: Duration = Duration::from_millis(600);

/// Names the test whose body a process is to run.
const APART: &str = "LEASEHOLD_TEST_APART";

/// What a process started by a test needs to know.
const WORK: &str = "LEASEHOLD_TEST_WORK";

// ---- how a test is run ----

/// Runs the body of a test in a process and a mount namespace of its own.
fn apart<W: Future<Output = ()>>(test: ChildTest, body: impl FnOnce() -> W) {
    let path = test.path();
    if std::env::var(APART).is_ok_and(|named| named == path) {
        in_runtime(body());
        println!("{path} holds");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]).arg(std::env::current_exe().unwrap());
    let ended = command.args(test.args()).env(APART, &path).output().unwrap();
    without_panic(&ended, &format!("{path} holds"));
}

fn in_runtime(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(secs(50), work).await.expect("an end within 50 s") });
    runtime.shutdown_background();
}

fn without_panic(ended: &Output, expected: &str) -> String {
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains(expected), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn run(program: &str, args: &[&OsStr]) {
    let ended = Command::new(program).args(args).output().unwrap();
    let why = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{program} {args:?}: {why}");
}

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// A file system in a folder; unmounted when this is dropped.
struct Disk {
    folder: PathBuf,
    image: PathBuf,
    _home: Home,
}

impl Disk {
    fn tmpfs(what: &str) -> Self {
        let disk = Disk::unmounted(what);
        disk.mount_tmpfs();
        disk
    }

    /// Without a journal, and to be read only from its first error on.
    fn ext4(what: &str) -> Self {
        let disk = Disk::unmounted(what);
        std::fs::File::create(&disk.image).unwrap().set_len(4 << 20).unwrap();
        let features = [os("-q"), os("-m"), os("0"), os("-O"), os("^has_journal"), disk.image.as_os_str()];
        run("mkfs.ext4", &features);
        let options =
            [os("-o"), os("loop,errors=remount-ro"), disk.image.as_os_str(), disk.folder.as_os_str()];
        run("mount", &options);
        disk
    }

    fn unmounted(what: &str) -> Self {
        let home = home(what);
        let (folder, image) = (home.path().join("disk"), home.path().join("image"));
        std::fs::create_dir(&folder).unwrap();
        Disk { folder, image, _home: home }
    }

    fn mount_tmpfs(&self) {
        run("mount", &[os("-t"), os("tmpfs"), os("-o"), os("size=4m"), os("none"), self.folder.as_os_str()]);
    }

    /// Puts an empty one in its place, while the old one is still in use.
    fn exchange(&self) {
        run("umount", &[os("-l"), self.folder.as_os_str()]);
        self.mount_tmpfs();
    }

    /// Has the file system find an error in itself.
    fn fail(&self) {
        let found = Command::new("findmnt").args(["-no", "SOURCE"]).arg(&self.folder).output().unwrap();
        let device = String::from_utf8(found.stdout).unwrap();
        let device = device.trim().strip_prefix("/dev/").unwrap();
        assert!(device.starts_with("loop"), "{device} is not ours");
        std::fs::write(Path::new("/sys/fs/ext4").join(device).join("trigger_fs_error"), "1").unwrap();
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.folder.join("filler")).unwrap();
        for size in [1 << 16, 1 << 12, 1 << 9, 1] {
            // What is not yet on the disk may still fail to get there.
            while file.write_all(&vec![7; size]).is_ok() && file.sync_data().is_ok() {}
        }
        assert!(std::fs::write(self.folder.join("more"), [7]).is_err(), "it is not full");
    }

    fn free(&self) {
        std::fs::remove_file(self.folder.join("filler")).unwrap();
        let _ = std::fs::remove_file(self.folder.join("more"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}

// ---- clients ----

const REMOTE_WORKER: ChildTest = child_test!(remote_worker);

#[test]
fn remote_worker() {
    remote::serve(|work| async move {
        let bytes = (0..work.len()).step_by(2).map(|i| u8::from_str_radix(&work[i..i + 2], 16).unwrap());
        let path = PathBuf::from(OsString::from_vec(bytes.collect()));
        Arc::new(File::open(path).await.unwrap()) as Arc<dyn Store>
    });
}

/// A store opened by another process.
async fn elsewhere(path: &Path) -> Remote {
    // Not every path is text.
    let work: String = path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    Remote::spawn(REMOTE_WORKER, &work).await
}

fn over(store: impl Store + 'static) -> Locks {
    Options::default().ttl(TTL).over(Arc::new(store)).unwrap()
}

/// With all that happens to it.
fn overheard(store: impl Store + 'static) -> (Locks, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let options = Options::default().ttl(TTL).on_event(move |event| {
        heard.lock().unwrap().push(event);
        std::future::ready(())
    });
    (options.over(Arc::new(store)).unwrap(), events)
}

async fn locks_here(path: &Path) -> Locks {
    over(File::open(path).await.unwrap())
}

async fn locks_elsewhere(path: &Path) -> Locks {
    over(elsewhere(path).await)
}

/// Why the store cannot be opened.
async fn refused(path: &Path) -> String {
    match File::open(path).await {
        Err(Error::Refused { store: "file", why }) => why,
        other => panic!("{} was not refused: {other:?}", path.display()),
    }
}

fn says(why: &str, parts: &[&str]) {
    for part in parts {
        assert!(why.contains(part), "no `{part}` in: {why}");
    }
}

async fn waiters(locks: &Locks, name: &str, count: usize) {
    while locks.inspect(name).await.unwrap().map_or(0, |status| status.waiters.len()) != count {
        tokio::time::sleep(ms(2)).await;
    }
}

async fn lock_and_release(locks: &Locks, name: &str) -> u64 {
    let lease = locks.mutex(name).ttl(secs(9)).lock().await.unwrap();
    let fence = lease.fence().get();
    lease.release().await.unwrap();
    fence
}

async fn is_held(locks: &Locks, name: &str) -> bool {
    locks.mutex(name).try_lock().await.unwrap().is_none()
}

fn database(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path.join("locks.db")).unwrap();
    connection.busy_timeout(secs(5)).unwrap();
    connection
}

fn is_sound(path: &Path) {
    let said = database(path).query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(said.unwrap(), "ok");
}

fn folder(path: &Path, mode: u32) {
    std::fs::DirBuilder::new().mode(0o700).create(path).unwrap();
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn file(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    set_mode(path, 0o600);
}

/// A store that a process made and left, with leases that outlive it; all of it in its one database file.
async fn left_behind(path: &Path, leases: usize) {
    let there = locks_elsewhere(path).await;
    for i in 0..leases {
        let lease = there.mutex(format!("held-{i}")).ttl(secs(600)).lock_detached().await.unwrap();
        drop(lease);
    }
    there.close().await;
    drop(there);
    while std::fs::read_dir(path.join("clients")).unwrap().next().is_some() {
        tokio::time::sleep(ms(2)).await;
    }
    // The last to leave takes the log away; the process that was there may still be leaving.
    while path.join("locks.db-wal").exists() {
        let database = database(path);
        database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        database.close().unwrap();
        tokio::time::sleep(ms(2)).await;
    }
}

// ---- the disk ----

async fn a_full_disk_is_survived(disk: Disk) {
    let path = disk.folder.join("locks");
    let (here, there) = (locks_here(&path).await, locks_elsewhere(&path).await);
    let held = here.mutex("held").lock().await.unwrap();
    let held_there = there.mutex("held there").lock().await.unwrap();
    disk.fill();

    tokio::time::sleep(TTL * 3).await;
    assert!(held.is_valid() && held_there.is_valid(), "{:?} {:?}", held.loss(), held_there.loss());
    held.release().await.unwrap();
    held_there.release().await.unwrap();
    for i in 0..400 {
        let (locks, name) = (if i % 2 == 0 { &here } else { &there }, format!("name {}", i % 7));
        lock_and_release(locks, &name).await;
    }
    let late = locks_elsewhere(&path).await;
    let lease = late.mutex("held").lock().await.unwrap();
    assert!(is_held(&here, "held").await);
    lease.release().await.unwrap();

    let why = refused(&disk.folder.join("new")).await;
    says(&why.to_lowercase(), &["no space", "disk/new`"]);
    disk.free();
    lock_and_release(&locks_here(&disk.folder.join("new")).await, "x").await;
    lock_and_release(&here, "held").await;
    is_sound(&path);
}

#[test]
fn on_a_full_tmpfs_leases_are_renewed_released_and_taken() {
    apart(child_test!(on_a_full_tmpfs_leases_are_renewed_released_and_taken), || async {
        a_full_disk_is_survived(Disk::tmpfs("full_tmpfs")).await;
    });
}

#[test]
fn on_a_full_ext4_leases_are_renewed_released_and_taken() {
    apart(child_test!(on_a_full_ext4_leases_are_renewed_released_and_taken), || async {
        a_full_disk_is_survived(Disk::ext4("full_ext4")).await;
    });
}

#[test]
fn a_store_on_a_read_only_disk_is_refused() {
    apart(child_test!(a_store_on_a_read_only_disk_is_refused), || async {
        let disk = Disk::tmpfs("read_only");
        let path = disk.folder.join("locks");
        left_behind(&path, 0).await;
        // A process that ends has its files open for a moment longer.
        while !Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.folder).status().unwrap().success()
        {
            tokio::time::sleep(ms(5)).await;
        }
        says(&refused(&path).await, &["disk/locks", "Read-only file system"]);
        says(&refused(&disk.folder.join("new")).await, &["disk/new`", "Read-only file system"]);
        run("mount", &[os("-o"), os("remount,rw"), disk.folder.as_os_str()]);
        lock_and_release(&locks_here(&path).await, "x").await;
    });
}

#[test]
fn a_disk_that_turns_read_only_costs_a_lease_at_its_deadline() {
    apart(child_test!(a_disk_that_turns_read_only_costs_a_lease_at_its_deadline), || async {
        let disk = Disk::ext4("turns_read_only");
        let path = disk.folder.join("locks");
        let (here, events) = overheard(File::open(&path).await.unwrap());
        let held = here.mutex("x").lock().await.unwrap();
        let (before, fence) = (Instant::now(), held.fence());
        let left = held.remaining();
        disk.fail();

        match here.mutex("y").lock().await {
            // It failed as it was committed, so that nobody can tell what came of it.
            Err(Error::Unreachable { why, .. }) => says(&why, &["disk/locks`", "Read-only file system"]),
            other => panic!("{other:?}"),
        }
        assert_eq!(held.lost().await, Loss::Unreachable);
        assert!(before.elapsed() + ms(5) >= left, "lost {:?} before its deadline", left - before.elapsed());
        assert!(matches!(held.release().await, Err(Error::Lost { reason: Loss::Unreachable, .. })));
        here.settled().await;
        let events = std::mem::take(&mut *events.lock().unwrap());
        let failed =
            |event: &Event| matches!(event, Event::RenewalFailed { why, .. } if why.contains("Read-only"));
        assert!(events.iter().any(failed), "{events:?}");
        assert!(events.iter().any(|event| matches!(event, Event::Lost { reason: Loss::Unreachable, .. })));

        disk.exchange();
        assert!(lock_and_release(&here, "x").await > fence.get());
        assert!(!is_held(&locks_elsewhere(&path).await, "x").await);
    });
}

// ---- damage ----

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    apart(child_test!(a_file_that_is_no_database_is_refused_and_left_as_it_is), || async {
        let home = home("no_database");
        let text = "a shopping list: eggs, flour\n";
        for (what, bytes) in [
            ("noise", noise(64 << 10)),
            ("some_noise", noise(700)),
            ("text", text.into()),
            ("long_text", text.repeat(999).into()),
        ] {
            let path = home.path().join(what);
            folder(&path, 0o700);
            file(&path.join("locks.db"), &bytes);
            says(&refused(&path).await, &[what, "is damaged", "move the directory away"]);
            assert_eq!(std::fs::read(path.join("locks.db")).unwrap(), bytes);
        }
        let path = home.path().join("nothing");
        folder(&path, 0o700);
        file(&path.join("locks.db"), b"");
        lock_and_release(&locks_here(&path).await, "x").await;
    });
}

/// Opens a copy of a store with `held-7` in it, and asks for that.
async fn damaged_is_never_granted(path: &Path, bytes: &[u8]) -> Result<bool, String> {
    if path.exists() {
        std::fs::remove_dir_all(path).unwrap();
    }
    folder(path, 0o700);
    file(&path.join("locks.db"), bytes);
    let asked = async { over(File::open(path).await?).mutex("held-7").try_lock().await };
    match asked.await {
        Ok(None) => Ok(true),
        Ok(Some(lease)) => {
            drop(lease);
            Ok(false)
        }
        Err(Error::Refused { why, .. }) => {
            says(&why, &[path.to_str().unwrap(), "is damaged", "move the directory away"]);
            Err(why)
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn whatever_page_is_damaged_nobody_is_granted_what_another_holds() {
    apart(child_test!(whatever_page_is_damaged_nobody_is_granted_what_another_holds), || async {
        const PAGE: usize = 1024;
        let home = home("damaged");
        let (whole, copy) = (home.path().join("whole"), home.path().join("copy"));
        left_behind(&whole, 60).await;
        let bytes = std::fs::read(whole.join("locks.db")).unwrap();
        assert_eq!(damaged_is_never_granted(&copy, &bytes).await, Ok(true));
        let mut refusals = 0;
        for (number, at) in (0..bytes.len()).step_by(PAGE).enumerate() {
            for with in [noise(PAGE), vec![0; PAGE]] {
                let mut damaged = bytes.clone();
                damaged[at..at + PAGE].copy_from_slice(&with);
                match damaged_is_never_granted(&copy, &damaged).await {
                    Ok(held) => assert!(held, "page {} was damaged, and a lease forgotten", number + 1),
                    Err(_) => refusals += 1,
                }
            }
        }
        assert!(refusals > 10, "only {refusals} of {} were noticed", bytes.len() / PAGE * 2);
        for length in [100, 700, PAGE, 2 * PAGE, bytes.len() / 2] {
            let cut = damaged_is_never_granted(&copy, &bytes[..length]).await;
            assert!(cut != Ok(false), "cut to {length} bytes, and a lease forgotten");
        }
    });
}

#[test]
fn a_database_of_somebody_elses_is_refused_and_left_as_it_is() {
    apart(child_test!(a_database_of_somebody_elses_is_refused_and_left_as_it_is), || async {
        let home = home("somebody_elses");
        for (what, sql) in [
            ("tables", "CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('Lili')"),
            ("application", "PRAGMA application_id = 77; CREATE TABLE songs (title TEXT)"),
            ("version", "PRAGMA user_version = 1"),
        ] {
            let path = home.path().join(what);
            folder(&path, 0o700);
            let theirs = database(&path);
            theirs.execute_batch(sql).unwrap();
            theirs.close().unwrap();
            set_mode(&path.join("locks.db"), 0o600);
            let bytes = std::fs::read(path.join("locks.db")).unwrap();
            says(&refused(&path).await, &[what, "is not a Leasehold store", "name another directory"]);
            assert_eq!(std::fs::read(path.join("locks.db")).unwrap(), bytes, "{what}");
            assert!(!path.join("locks.db-wal").exists(), "{what}");
        }
    });
}

#[test]
fn a_store_of_a_newer_format_is_refused() {
    apart(child_test!(a_store_of_a_newer_format_is_refused), || async {
        let home = home("newer");
        let path = home.path().join("locks");
        left_behind(&path, 1).await;
        let newer = database(&path);
        newer.execute_batch("PRAGMA user_version = 99").unwrap();
        newer.close().unwrap();
        let bytes = std::fs::read(path.join("locks.db")).unwrap();
        says(&refused(&path).await, &["locks`", "version 99", "use a newer program"]);
        assert_eq!(std::fs::read(path.join("locks.db")).unwrap(), bytes);
    });
}

/// A process that is killed while it makes a store, at whatever point, leaves one that the next can open.
#[test]
fn a_store_half_made_is_finished_by_the_next() {
    apart(child_test!(a_store_half_made_is_finished_by_the_next), || async {
        let home = home("half_made");
        for after_us in (0..20_000).step_by(500) {
            let path = home.path().join(format!("after_{after_us}_us"));
            let mut maker = child_test!(child_that_makes_a_store).command();
            maker.env(WORK, &path).env_remove(APART);
            let mut maker = maker.stdout(std::process::Stdio::null()).spawn().unwrap();
            while !path.exists() {
                let ended = maker.try_wait().unwrap();
                assert!(ended.is_none(), "a child ended before it made its store: {ended:?}");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(after_us));
            maker.kill().unwrap();
            maker.wait().unwrap();
            lock_and_release(&locks_here(&path).await, "x").await;
        }
    });
}

/// Does its work only as the child of the test above.
#[test]
fn child_that_makes_a_store() {
    let Some(path) = std::env::var_os(WORK) else { return };
    in_runtime(async {
        let store = File::open(path).await;
        std::thread::sleep(secs(10));
        drop(store);
    });
}

// ---- files taken away under running processes ----

/// A holder here and a waiter in another process, when something is done to the files.
async fn torn(what: &str, tear: impl Fn(&Path)) {
    const TTL: Duration = Duration::from_millis(1_200);
    // A new store is synced, and a real disk may be busy for longer than a lease lasts.
    let disk = Disk::tmpfs(what);
    let path = disk.folder.join("locks");
    // The database of another store.
    left_behind(&disk.folder.join("another"), 3).await;
    replace(&path.with_extension("db"), &disk.folder.join("another/locks.db"));
    let (here, events) = overheard(File::open(&path).await.unwrap());
    let there = locks_elsewhere(&path).await;
    let held = here.mutex("x").ttl(TTL).lock().await.unwrap();
    let fence = held.fence();
    let waiter = tokio::spawn(there.mutex("x").ttl(TTL).lock());
    waiters(&here, "x", 1).await;
    tear(&path);
    let torn_at = Instant::now();

    let loss = held.lost().await;
    let noticed = torn_at.elapsed();
    assert!(matches!(loss, Loss::Deleted | Loss::Taken), "{what}: {loss:?} {:?}", events.lock().unwrap());
    assert!(noticed < TTL * 2 / 3, "{what}: noticed after {noticed:?}");
    assert!(matches!(held.release().await, Err(Error::Lost { .. })), "{what}");

    let served = tokio::time::timeout(TTL * 2, waiter).await.expect(what).unwrap().unwrap();
    assert!(served.fence() > fence, "{what}: the fence fell");
    let third = locks_elsewhere(&path).await;
    for others in [&here, &third] {
        assert!(is_held(others, "x").await, "{what}: two hold it");
    }
    tokio::time::sleep(TTL * 2 / 3).await;
    assert!(served.is_valid(), "{what}: {:?}", served.loss());
    let next = tokio::spawn(here.mutex("x").ttl(secs(30)).lock());
    waiters(&third, "x", 1).await;
    let released_at = Instant::now();
    served.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(released_at.elapsed() < secs(3), "{what}: found out by looking, not told");
    next.release().await.unwrap();
    is_sound(&path);
}

/// As `mv` and `rm` do it, without opening what SQLite has open.
fn replace(path: &Path, with: &Path) {
    std::fs::rename(with, path).unwrap();
}

#[test]
fn a_store_removed_under_its_users_is_lost_and_made_anew() {
    apart(child_test!(a_store_removed_under_its_users_is_lost_and_made_anew), || async {
        tokio::join!(
            // Something may be made in it meanwhile.
            torn("directory_removed", |path| while std::fs::remove_dir_all(path).is_err() {}),
            torn("directory_moved", |path| replace(&path.with_extension("old"), path)),
            torn("directory_replaced", |path| {
                replace(&path.with_extension("old"), path);
                folder(path, 0o700);
            }),
        );
    });
}

/// What stands beside the database goes, and nobody loses anything.
async fn kept(what: &str, spoil: impl Fn(&Path)) {
    let home = home(what);
    let path = home.path().join("locks");
    let (here, there) = (locks_here(&path).await, locks_elsewhere(&path).await);
    let held = here.mutex("x").lock().await.unwrap();
    let waiter = tokio::spawn(there.mutex("x").ttl(secs(30)).lock());
    waiters(&here, "x", 1).await;
    spoil(&path);
    let third = locks_elsewhere(&path).await;
    assert!(is_held(&third, "x").await, "{what}: two hold it");
    tokio::time::sleep(TTL * 2).await;
    assert!(held.is_valid(), "{what}: {:?}", held.loss());
    held.release().await.unwrap();
    let served = tokio::time::timeout(secs(15), waiter).await.expect(what).unwrap().unwrap();
    assert!(is_held(&here, "x").await && is_held(&third, "x").await, "{what}: two hold it");
    // By now everybody has found its way back: the next hand-over is told.
    let next = tokio::spawn(here.mutex("x").ttl(secs(30)).lock());
    waiters(&third, "x", 1).await;
    let released_at = Instant::now();
    served.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    assert!(released_at.elapsed() < secs(3), "{what}: found out by looking, not told");
    is_sound(&path);
}

#[test]
fn a_gate_or_a_folder_of_clients_that_is_removed_costs_nobody_a_lease() {
    apart(child_test!(a_gate_or_a_folder_of_clients_that_is_removed_costs_nobody_a_lease), || async {
        tokio::join!(
            kept("clients_removed", |path| std::fs::remove_dir_all(path.join("clients")).unwrap()),
            kept("gate_removed", |path| std::fs::remove_file(path.join("gate")).unwrap()),
        );
    });
}

#[test]
fn a_store_torn_apart_under_its_users_is_lost_and_made_anew() {
    apart(child_test!(a_store_torn_apart_under_its_users_is_lost_and_made_anew), || async {
        tokio::join!(
            torn("database_removed", |path| std::fs::remove_file(path.join("locks.db")).unwrap()),
            torn("log_removed", |path| std::fs::remove_file(path.join("locks.db-wal")).unwrap()),
            torn("index_removed", |path| std::fs::remove_file(path.join("locks.db-shm")).unwrap()),
            torn("database_replaced", |path| replace(&path.join("locks.db"), &path.with_extension("db"))),
        );
    });
}

// ---- whose files they are ----

/// Everything below a folder: path, mode, owner, and bytes or target.
fn everything_in(folder: &Path) -> BTreeSet<(PathBuf, u32, u32, Vec<u8>)> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = std::fs::symlink_metadata(&path).unwrap();
        let content = match about.file_type() {
            kind if kind.is_dir() => {
                found.extend(everything_in(&path));
                Vec::new()
            }
            kind if kind.is_symlink() => std::fs::read_link(&path).unwrap().into_os_string().into_vec(),
            kind if kind.is_fifo() => Vec::new(),
            _ => std::fs::read(&path).unwrap(),
        };
        found.insert((path, about.mode(), about.uid(), content));
    }
    found
}

#[test]
fn files_of_others_or_open_to_others_are_refused_and_left_as_they_are() {
    type Spoil = fn(&Path);
    const CASES: &[(&str, Spoil, &[&str])] = &[
        (
            "owner",
            |path| std::os::unix::fs::chown(path, Some(4_711), None).unwrap(),
            &["/locks` belongs to user 4711", "runs as user 0", "name another directory"],
        ),
        (
            "owner_of_database",
            |path| std::os::unix::fs::chown(path.join("locks.db"), Some(4_711), None).unwrap(),
            &["/locks/locks.db` belongs to user 4711"],
        ),
        (
            "mode_755",
            |path| set_mode(path, 0o755),
            &["/locks` is open to other users (mode 755)", "`chmod 700 /"],
        ),
        (
            "mode_770",
            |path| set_mode(path, 0o770),
            &["/locks` is open to other users (mode 770)", "`chmod 700 /"],
        ),
        (
            "mode_of_database",
            |path| set_mode(&path.join("locks.db"), 0o644),
            &["/locks/locks.db` is open to other users (mode 644)", "`chmod 600 /"],
        ),
        (
            "mode_of_gate",
            |path| set_mode(&path.join("gate"), 0o666),
            &["/locks/gate` is open to other users (mode 666)", "`chmod 600 /"],
        ),
        (
            "mode_of_clients",
            |path| set_mode(&path.join("clients"), 0o777),
            &["/locks/clients` is open to other users (mode 777)", "`chmod 700 /"],
        ),
        (
            "directory_is_a_link",
            |path| linked(path),
            &["/locks` is not a directory", "not followed", "name the directory"],
        ),
        (
            "database_is_a_link",
            |path| linked(&path.join("locks.db")),
            &["/locks/locks.db` is not a plain file", "not followed", "move it away"],
        ),
        (
            "gate_is_a_link",
            |path| linked(&path.join("gate")),
            &["/locks/gate` is not a plain file", "not followed", "move it away"],
        ),
        (
            "clients_is_a_link",
            |path| linked(&path.join("clients")),
            &["/locks/clients` is not a directory", "not followed", "move it away"],
        ),
        (
            "directory_is_a_dangling_link",
            |path| instead(path, |path| symlink("nowhere", path).unwrap()),
            &["/locks` is not a directory"],
        ),
        (
            "database_is_a_dangling_link",
            |path| {
                instead(&path.join("locks.db"), |path| symlink("nowhere", path).unwrap());
            },
            &["/locks/locks.db` is not a plain file"],
        ),
        (
            "directory_is_a_file",
            |path| instead(path, |path| file(path, b"kept")),
            &["/locks` is not a directory", "name the directory"],
        ),
        (
            "clients_is_a_file",
            |path| instead(&path.join("clients"), |path| file(path, b"kept")),
            &["/locks/clients` is not a directory"],
        ),
        (
            "gate_is_a_folder",
            |path| instead(&path.join("gate"), |path| folder(path, 0o700)),
            &["/locks/gate` is not a plain file"],
        ),
        (
            "database_is_a_fifo",
            |path| fifo(&path.join("locks.db")),
            &["/locks/locks.db` is not a plain file"],
        ),
        ("gate_is_a_fifo", |path| fifo(&path.join("gate")), &["/locks/gate` is not a plain file"]),
    ];

    /// Moved aside.
    fn instead(path: &Path, put: impl FnOnce(&Path)) {
        std::fs::rename(path, path.with_extension("aside")).unwrap();
        put(path);
    }
    fn linked(path: &Path) {
        instead(path, |path| symlink(path.with_extension("aside"), path).unwrap());
    }
    fn fifo(path: &Path) {
        instead(path, |path| run("mkfifo", &[os("-m"), os("600"), path.as_os_str()]));
    }

    apart(child_test!(files_of_others_or_open_to_others_are_refused_and_left_as_they_are), || async {
        let homes = home("others");
        let whole = homes.path().join("whole");
        left_behind(&whole, 1).await;
        for (what, spoil, texts) in CASES {
            let path = homes.path().join(what).join("locks");
            folder(path.parent().unwrap(), 0o700);
            run("cp", &[os("-a"), whole.as_os_str(), path.as_os_str()]);
            spoil(&path);
            let before = everything_in(path.parent().unwrap());
            says(&refused(&path).await, texts);
            assert_eq!(everything_in(path.parent().unwrap()), before, "{what}");
        }
        // A link on the way there is nobody's business but the caller's.
        symlink(homes.path(), homes.path().join("way")).unwrap();
        assert!(is_held(&locks_here(&homes.path().join("way/whole")).await, "held-0").await);
        assert!(is_held(&locks_here(&whole).await, "held-0").await);
    });
}

// ---- where it is ----

/// Two processes hand a lock over by telling, not by looking.
async fn handed_over(path: &Path) {
    let (here, there) = (locks_here(path).await, locks_elsewhere(path).await);
    for (from, to) in [(&here, &there), (&there, &here)] {
        let held = from.mutex("x").ttl(secs(30)).lock().await.unwrap();
        let waiter = tokio::spawn(to.mutex("x").ttl(secs(30)).lock());
        waiters(&here, "x", 1).await;
        let released_at = Instant::now();
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        let took = released_at.elapsed();
        assert!(took < secs(2), "{}: took {took:?}", path.display());
    }
}

#[test]
fn a_path_may_be_long_or_strange() {
    apart(child_test!(a_path_may_be_long_or_strange), || async {
        let home = home("strange");
        let deep = home.path().join("a folder of thirty characters/".repeat(7));
        assert!(deep.as_os_str().len() > 200);
        handed_over(&deep).await;
        for strange in [
            "with space",
            "it's \"quoted\"",
            "100%25",
            "a?mode=ro&b",
            "#1",
            "line\nbreak",
            "file:x",
            ":memory:",
        ] {
            handed_over(&home.path().join(strange)).await;
        }
        handed_over(&home.path().join(OsStr::from_bytes(b"not \xff text \xc3"))).await;
        // As long as SQLite takes, and longer.
        let mut path = home.path().join("a folder of thirty characters/".repeat(12));
        path.push("x".repeat(495 - path.as_os_str().len()));
        assert_eq!(path.as_os_str().len(), 495);
        handed_over(&path).await;
        path.as_mut_os_string().push("x");
        says(
            &refused(&path).await,
            &["a folder of thirty characters", "is too long", "495 bytes", "a shorter one"],
        );
    });
}

/// A file system in user space that knows its root folder and nothing else, in as many words as the kernel needs.
fn answer_as_fuse(mut kernel: std::fs::File) {
    let mut request = vec![0; 1 << 17];
    while let Ok(length) = kernel.read(&mut request) {
        assert!(length >= 40);
        let opcode = u32::from_le_bytes(request[4..8].try_into().unwrap());
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let (error, body) = match opcode {
            // LOOKUP: there is nothing.
            1 => (-2i32, vec![]),
            // FORGET, BATCH_FORGET, INTERRUPT: no answer is expected.
            2 | 36 | 42 => continue,
            // GETATTR: good for an hour; a folder of mode 700.
            3 => {
                let mut attributes = vec![0; 26];
                (attributes[0], attributes[4], attributes[19], attributes[20]) = (3_600, 1, 0o040_700, 2);
                (0, words(&attributes))
            }
            // STATFS
            17 => (0, vec![0; 80]),
            // INIT: protocol 7.31, writes of 4096 bytes.
            26 => {
                let mut init = vec![0; 16];
                (init[0], init[1], init[5], init[6]) = (7, 31, 4_096, 1);
                (0, words(&init))
            }
            // OPENDIR, RELEASEDIR
            27 => (0, vec![0; 16]),
            29 => (0, vec![]),
            // It is not offered.
            _ => (-38, vec![]),
        };
        let mut reply = words(&[16 + body.len() as u32, error as u32]);
        reply.extend(&request[8..16]);
        reply.extend(body);
        // Whoever asked may be gone.
        let _ = kernel.write(&reply);
    }
}

#[test]
fn a_directory_on_a_network_file_system_is_refused() {
    apart(child_test!(a_directory_on_a_network_file_system_is_refused), || async {
        let disk = Disk::unmounted("fuse");
        let kernel =
            rustix::fs::open("/dev/fuse", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&kernel);
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        // Not through a helper that might not be there.
        run(
            "mount",
            &[os("-i"), os("-t"), os("fuse"), os("-o"), os(&options), os("none"), disk.folder.as_os_str()],
        );
        std::thread::spawn(move || answer_as_fuse(std::fs::File::from(kernel)));
        says(&refused(&disk.folder).await, &["/disk` is on FUSE", "use a local directory"]);
    });
}

// ---- the process and its surroundings ----

/// Does its work only as the child of the test below: opens what is found without a path, and looks at its files.
#[test]
fn child_in_an_environment() {
    let Some(expected) = std::env::var_os(WORK).map(PathBuf::from) else { return };
    in_runtime(async {
        let locks = match leasehold::connect("file:").await {
            Ok(locks) => locks,
            Err(error) => return println!("{error}"),
        };
        let lease = locks.mutex("x").lock().await.unwrap();
        let mut seen = 0;
        let mut mode = |path: &Path| {
            let about = std::fs::symlink_metadata(path).unwrap();
            let right = if about.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(about.mode() & 0o7777, right, "{}", path.display());
            seen += 1;
        };
        mode(&expected);
        for folder in [&expected, &expected.join("clients")] {
            std::fs::read_dir(folder).unwrap().for_each(|entry| mode(&entry.unwrap().path()));
        }
        assert_eq!(seen, 9, "the folder, five files and a folder in it, three files in that");
        lease.release().await.unwrap();
        println!("found where it should be");
    });
}

#[test]
fn without_a_path_it_is_where_the_environment_says_and_nobody_elses() {
    apart(child_test!(without_a_path_it_is_where_the_environment_says_and_nobody_elses), || async {
        let home = home("environment");
        let (state, user) = (home.path().join("state"), home.path().join("user"));
        let in_state = state.join("leasehold");
        let in_home = user.join(".local/state/leasehold");
        let found = "found where it should be";
        let nowhere = "neither XDG_STATE_HOME nor HOME is set to an absolute path; name a directory";
        let relative = Path::new("some/folder");
        for (state, user, expected, says) in [
            (Some(&*state), Some(&*user), &in_state, found),
            (Some(&*state), None, &in_state, found),
            (None, Some(&*user), &in_home, found),
            (Some(relative), Some(&*user), &in_home, found),
            (Some(relative), None, &in_home, nowhere),
            (Some(Path::new("")), Some(Path::new("")), &in_home, nowhere),
            (None, None, &in_home, nowhere),
        ] {
            for umask in ["000", "022", "077"] {
                let _ = std::fs::remove_dir_all(home.path().join("state"));
                let _ = std::fs::remove_dir_all(home.path().join("user"));
                let mut child = Command::new("sh");
                child.args(["-c", "umask $0; exec \"$@\"", umask]).arg(std::env::current_exe().unwrap());
                child.args(child_test!(child_in_an_environment).args()).current_dir(home.path());
                child.env_remove("XDG_STATE_HOME").env_remove("HOME").env(WORK, expected);
                child.envs(state.map(|path| ("XDG_STATE_HOME", path))).envs(user.map(|path| ("HOME", path)));
                without_panic(&child.output().unwrap(), says);
                assert!(!home.path().join("some").exists());
            }
        }
    });
}

#[test]
fn a_process_out_of_descriptors_is_told_so_or_served_more_slowly() {
    apart(child_test!(a_process_out_of_descriptors_is_told_so_or_served_more_slowly), || async {
        let home = home("descriptors");
        let path = home.path().join("locks");
        let (there, other) = (locks_elsewhere(&path).await, elsewhere(&path).await);
        let limit = |current: Option<u64>| {
            let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
            let limit = rustix::process::Rlimit { current: current.or(maximum), maximum };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        };
        let mut errors = 0;
        let mut opened = None;
        for most in 3..200 {
            limit(Some(most));
            match File::open(&path).await {
                Ok(store) => {
                    opened = Some(store);
                    break;
                }
                Err(Error::Refused { why: text, .. } | Error::System { why: text, .. }) => {
                    let is_clear =
                        ["Too many open files", "descriptor"].iter().any(|part| text.contains(part));
                    assert!(is_clear, "{most}: {text}");
                    errors += 1;
                }
                Err(error) => panic!("{most}: {error:?}"),
            }
        }
        assert!(errors > 5, "{errors}");
        // Not one descriptor is left to it.
        let here = over(opened.unwrap());
        while std::fs::File::open("/dev/null").map(std::mem::forget).is_ok() {}
        let held = here.mutex("mine").lock().await.unwrap();

        // A waiter is told when it is its turn, and finds out by looking when the holder dies.
        let theirs = there.mutex("x").lock().await.unwrap();
        let waiter = tokio::spawn(here.mutex("x").lock());
        waiters(&there, "x", 1).await;
        theirs.release().await.unwrap();
        let mine = tokio::time::timeout(TTL * 2, waiter).await.expect("an answer").unwrap().unwrap();
        mine.release().await.unwrap();
        let theirs = over(other.clone());
        let lost = theirs.mutex("x").lock().await.unwrap();
        let waiter = tokio::spawn(here.mutex("x").lock());
        waiters(&there, "x", 1).await;
        other.kill();
        let mine = tokio::time::timeout(TTL * 4, waiter).await.expect("an answer").unwrap().unwrap();
        mine.release().await.unwrap();
        drop(lost);
        assert!(held.is_valid(), "{:?}", held.loss());
        held.release().await.unwrap();
        limit(None);
        lock_and_release(&locks_here(&path).await, "x").await;
    });
}

#[test]
fn who_looks_into_the_live_database_holds_nobody_up_for_good() {
    apart(child_test!(who_looks_into_the_live_database_holds_nobody_up_for_good), || async {
        let home = home("operator");
        let path = home.path().join("locks");
        let (here, there) = (locks_here(&path).await, locks_elsewhere(&path).await);
        let held = here.mutex("held").ttl(secs(9)).lock().await.unwrap();
        let operator = database(&path);

        // One who only reads is in nobody's way.
        operator.execute_batch("BEGIN; SELECT * FROM holding").unwrap();
        for _ in 0..50 {
            lock_and_release(&here, "x").await;
            lock_and_release(&there, "x").await;
        }
        operator.execute_batch("COMMIT").unwrap();

        // One who writes for a second is waited for.
        operator.execute_batch("BEGIN IMMEDIATE").unwrap();
        let began = Instant::now();
        let both = [&here, &there].map(|locks| {
            let lock = locks.mutex("x").ttl(secs(9)).lock();
            tokio::spawn(async { lock.await?.release().await })
        });
        tokio::time::sleep(secs(1)).await;
        operator.execute_batch("COMMIT").unwrap();
        for locked_and_released in both {
            locked_and_released.await.unwrap().unwrap();
        }
        assert!(began.elapsed() >= secs(1) && began.elapsed() < secs(3), "{:?}", began.elapsed());

        // One who stays longer is named.
        operator.execute_batch("BEGIN IMMEDIATE").unwrap();
        match here.mutex("x").ttl(secs(9)).lock().await {
            Err(Error::Unreachable { why, .. }) => {
                says(&why, &["another program has locked the database in", "/locks`"]);
            }
            other => panic!("{other:?}"),
        }
        operator.execute_batch("COMMIT").unwrap();
        lock_and_release(&there, "x").await;
        lock_and_release(&here, "x").await;
        assert!(held.is_valid(), "{:?}", held.loss());
        held.release().await.unwrap();
    });
}

// ---- a reboot ----

/// Does its work only as the child of the test below: the first to come after a reboot.
#[test]
fn child_after_a_reboot() {
    let Ok(work) = std::env::var(WORK) else { return };
    let (fence, path) = work.split_once(' ').unwrap();
    let (fence, path): (u64, _) = (fence.parse().unwrap(), Path::new(path));
    let boot = path.with_extension("boot");
    run("mount", &[os("--bind"), boot.as_os_str(), os("/proc/sys/kernel/random/boot_id")]);
    in_runtime(async {
        let (began, locks) = (Instant::now(), locks_here(path).await);
        let status = locks.inspect("detached").await.unwrap().expect("it is still held");
        let left = status.holders[0].remaining;
        let whole = ms(2_000);
        assert!(left <= whole && left + began.elapsed() + ms(50) >= whole, "not its whole TTL: {left:?}");
        assert!(is_held(&locks, "detached").await);
        for name in ["gone", "short"] {
            let late = locks.cells().bytes(name).set_fenced(Fence::new(8).unwrap(), &vec![2]).await;
            assert!(matches!(late, Err(Error::Stale { .. })), "{name}: {late:?}");
        }
        assert_eq!(locks.cells().bytes("gone").get().await.unwrap(), None);
        assert_eq!(locks.cells().bytes("short").get().await.unwrap(), Some(vec![1]));
        let held = locks.inspect("held").await.unwrap();
        assert!(held.is_none(), "holders and waiters are gone: {held:?}");
        let next = locks.mutex("held").try_lock().await.unwrap().expect("nobody holds it");
        assert!(next.fence().get() > fence);
        let next = locks.mutex("detached").lock().await.unwrap();
        let waited = began.elapsed();
        assert!(waited + ms(5) >= left && waited < whole + secs(1), "waited {waited:?}, with {left:?} left");
        assert!(next.fence().get() > fence);
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        println!("up for {}", uptime.split('.').next().unwrap());
    });
}

#[test]
fn after_a_reboot_nobody_holds_but_what_was_detached() {
    apart(child_test!(after_a_reboot_nobody_holds_but_what_was_detached), || async {
        let home = home("reboot");
        let up = |text: &str| text.split('.').next().unwrap().parse::<i64>().unwrap();
        let now = up(&std::fs::read_to_string("/proc/uptime").unwrap());
        // The clock of the new boot may be behind that of the old one, or ahead of it.
        for (boot, offset) in [("behind", 5 - now), ("ahead", 1_000_000)] {
            let path = home.path().join(boot);
            let before = elsewhere(&path).await;
            let (holder, waiter) = (over(before.clone()), over(before.clone()));
            let held = holder.mutex("held").ttl(secs(3_600)).lock().await.unwrap();
            let waiting = tokio::spawn(waiter.mutex("held").ttl(secs(3_600)).lock());
            waiters(&holder, "held", 1).await;
            let detached = holder.mutex("detached").ttl(secs(2)).lock_detached().await.unwrap();
            let fence = detached.fence().unwrap().get();
            // A value that is gone, and one that ends: what they were written under is remembered.
            let gone = holder.cells().bytes("gone");
            gone.set_fenced(Fence::new(9).unwrap(), &vec![1]).await.unwrap();
            gone.delete_fenced(Fence::new(9).unwrap()).await.unwrap();
            let short = holder.cells().bytes("short").ttl(secs(3_600));
            short.set_fenced(Fence::new(9).unwrap(), &vec![1]).await.unwrap();
            before.kill();
            waiting.abort();

            file(&path.with_extension("boot"), b"6b2d4f0e-0000-4000-8000-000000000000\n");
            let mut child = Command::new("unshare");
            child.args(["--mount", "--propagation", "private", "--time", "--fork", "--kill-child"]);
            child.args(["--boottime", &offset.to_string(), "--"]).arg(std::env::current_exe().unwrap());
            child.args(child_test!(child_after_a_reboot).args()).env_remove(APART);
            child.env(WORK, format!("{fence} {}", path.display()));
            let child = tokio::task::spawn_blocking(move || child.output().unwrap()).await.unwrap();
            let said = without_panic(&child, "up for ");
            let uptime = said.split("up for ").nth(1).unwrap().lines().next().unwrap().trim();
            let shift = up(uptime) - now;
            assert!(
                (offset..offset + 60).contains(&shift),
                "{boot}: the clock went {shift} s, not {offset} s"
            );
            drop((held, detached));
        }
    });
}
