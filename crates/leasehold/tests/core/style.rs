//! What the house rules say of the library's sources, checked.

use std::path::{Path, PathBuf};

fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 20);
    found
}

#[test]
fn only_the_clock_reads_time_or_sleeps() {
    for (path, text) in sources() {
        if path.ends_with("src/clock.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for banned in ["Instant", "SystemTime", "tokio::time", "thread::sleep", "clock_gettime"] {
                assert!(!line.contains(banned), "{}:{}: {banned}", path.display(), number + 1);
            }
        }
    }
}

#[test]
fn every_room_says_what_it_is_for() {
    for (path, text) in sources() {
        assert!(text.starts_with("//! "), "{} does not begin with what it is for", path.display());
    }
}

/// Every public method that is a future says what cancelling it does.
#[test]
fn every_async_method_says_what_cancelling_does() {
    let mut checked = 0;
    for (path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let line = line.trim_start();
            let signature =
                lines[number..].iter().take(6).map(|line| line.trim()).collect::<Vec<_>>().join(" ");
            let signature = signature.split('{').next().unwrap();
            let is_future = line.starts_with("pub async fn")
                || line.starts_with("pub fn")
                    && (signature.contains("impl Future") || signature.contains("-> Sleep"));
            if !is_future {
                continue;
            }
            checked += 1;
            let docs = lines[..number].iter().rev().take_while(|line| {
                let line = line.trim_start();
                line.starts_with("///") || line.starts_with("#[")
            });
            let says = docs.into_iter().any(|line| line.contains("# Cancel safety"));
            assert!(says, "{}:{}: `{line}` says nothing of cancelling", path.display(), number + 1);
        }
    }
    assert!(checked > 15, "only {checked} found");
}

/// What users move between threads and tasks can be moved, now and after every change.
#[test]
fn public_types_are_send_and_sync() {
    fn both<T: Send + Sync + 'static>() {}
    fn send<T: Send>(_: T) {}
    both::<leasehold::Locks>();
    both::<leasehold::Lease>();
    both::<leasehold::Detached>();
    both::<leasehold::Proof>();
    both::<leasehold::Mutex>();
    both::<leasehold::RwLock>();
    both::<leasehold::Semaphore>();
    both::<leasehold::RateLimit>();
    both::<leasehold::Cells>();
    both::<leasehold::Counter>();
    both::<leasehold::Cell<Vec<u8>>>();
    both::<leasehold::Script>();
    both::<leasehold::Cache>();
    both::<leasehold::LoadError<String>>();
    both::<leasehold::blocking::Cache>();
    both::<leasehold::Error>();
    both::<leasehold::Event>();
    both::<leasehold::Clock>();
    both::<leasehold::blocking::Locks>();
    both::<leasehold::blocking::Lease>();
    both::<leasehold::blocking::Detached>();
    both::<leasehold::blocking::Cell<Vec<u8>>>();
    let futures = |locks: leasehold::Locks, lease: leasehold::Lease, mut detached: leasehold::Detached| {
        send(locks.mutex("x").lock());
        send(locks.mutex("x").try_lock());
        send(locks.mutex("x").run(|lease| async move { lease.lost().await }));
        send(async move {
            lease.extend(std::time::Duration::ZERO).await?;
            lease.detach(std::time::Duration::ZERO).await
        });
        send(locks.rwlock("x").read());
        send(locks.rwlock("x").try_read());
        send(locks.rwlock("x").write());
        send(locks.rwlock("x").try_write());
        send(locks.semaphore("x", 1).acquire());
        send(locks.semaphore("x", 1).try_acquire());
        send(locks.semaphore("x", 1).acquire_many(1));
        send(locks.semaphore("x", 1).try_acquire_many(1));
        let limit = locks.rate_limit("x");
        send(async move { limit.wait(1).await });
        send(async { locks.cells().bytes("x").update(|_| vec![0]).await });
        send(async { locks.cells().script("").call().run::<i64>().await });
        send(locks.mutex("x").lock_detached());
        send(locks.mutex("x").try_lock_detached());
        send(async move {
            detached.extend(std::time::Duration::ZERO).await?;
            detached.release().await
        });
        send(async move { locks.close().await });
    };
    let _ = futures;
}
