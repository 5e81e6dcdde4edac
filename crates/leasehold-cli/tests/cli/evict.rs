//! `leasehold evict` beside commands that hold the lock.

use std::time::{Duration, Instant};

use crate::common::{Home, Running, lives, said, until};
use leasehold_lab::{Kind, Server};
use rustix::process::Signal;

/// A third of the TTL of the commands, after which a holder that is not told renews its lease.
const RENEWAL: Duration = Duration::from_secs(20);

/// A command under the lock `x` that runs for a long time; and its process.
fn holder(home: &Home, store: &str, options: &str) -> (Running, i32) {
    let mut running = home.start_with(["run", "--store", store], |command| {
        let script = ["x", "--", "sh", "-c", "echo $$; exec sleep 1000"];
        command.args(options.split_whitespace()).args(script);
    });
    let pid = running.pid();
    (running, pid)
}

const JOB: &str = "--ttl 60s -k 5s --owner job";

fn on_each_store(test: impl Fn(&Home, &str)) {
    let home = Home::in_memory();
    test(&home, &format!("file:{}", home.path().join("locks").display()));
    let server = Server::start(Kind::Redis).unwrap();
    test(&home, &server.url());
    let nodes: Vec<Server> = (0..3).map(|_| Server::start(Kind::Redis).unwrap()).collect();
    let places: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    test(&home, &format!("redlock:{}?quarantine=off&timeout=3000", places.join(",")));
}

#[test]
fn evict_waits_until_the_command_of_the_holder_has_ended() {
    on_each_store(|home, store| {
        let (running, pid) = holder(home, store, JOB);
        let start = Instant::now();
        let (code, told, error) = home.call(["evict", "--store", store, "--yes", "--wait-gone", "x"]);
        let elapsed = start.elapsed();
        assert!(!lives(pid), "{store}: the command runs on: {told}");
        assert_eq!(code, 0, "{error}");
        assert_eq!(told, "x was taken from job\njob confirmed that its work has ended\n", "{store}");
        assert!(elapsed < RENEWAL / 2, "{store}: the holder was not told at once: {elapsed:?}");
        println!("{elapsed:>10.1?}  {}", store.split(':').next().unwrap());
        assert_eq!(running.end().0, 79);
    });
}

#[test]
fn evict_waits_for_the_lease_of_a_holder_that_stands_still() {
    on_each_store(|home, store| {
        let (running, pid) = holder(home, store, "--ttl 3s -k 100ms --owner job");
        running.signal(Signal::STOP);
        let (code, told, error) =
            home.call(["evict", "--store", store, "--yes", "--wait-gone", "--output", "json", "x"]);
        assert_eq!(code, 0, "{error}");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!((&told["gone"][0]["how"], &told["gone"][0]["owner"]), (&"expired".into(), &"job".into()));
        assert!(lives(pid), "it stands still, and its supervisor with it");
        running.signal(Signal::CONT);
        until(|| !lives(pid), "the command to be ended");
        assert_eq!(running.end().0, 79);
    });
}

#[test]
fn evict_takes_the_lock_from_one_of_several_holders() {
    let home = Home::in_memory();
    let server = Server::start(Kind::Redis).unwrap();
    for store in [format!("file:{}", home.path().join("locks").display()), server.url()] {
        let (one, its_pid) = holder(&home, &store, "--ttl 60s --shared --owner one");
        let (two, other_pid) = holder(&home, &store, "--ttl 60s --shared --owner two");
        let (three, third_pid) = holder(&home, &store, "--ttl 60s --shared --owner three");
        let (code, told, error) =
            home.call(["evict", "--store", &store, "--yes", "--wait-gone", "--holder", "two", "x"]);
        assert_eq!(code, 0, "{error}");
        assert_eq!(told, "x was taken from two\ntwo confirmed that its work has ended\n");
        assert!(lives(its_pid) && !lives(other_pid) && lives(third_pid));
        assert_eq!(two.end().0, 79);
        // By its fence.
        let (_, status, _) = home.call(["inspect", "--store", &store, "--output", "json", "x"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let holders = status["holders"].as_array().unwrap();
        let third = holders.iter().find(|holder| holder["owner"] == "three").unwrap();
        let fence = third["fence"].to_string();
        let (_, told, _) = home.call(["evict", "--store", &store, "--yes", "--holder", &fence, "x"]);
        assert_eq!(told, "x was taken from three\n");
        assert_eq!(three.end().0, 79);
        // One that does not hold it; there is no question.
        for options in [&["--yes"][..], &[]] {
            let mut command = home.leasehold();
            command.args(["evict", "--store", &store, "--holder", "nobody", "x"]).args(options);
            let (code, out, told) = said(&mut command);
            assert_eq!((code, out.as_str()), (79, ""), "{told}");
            assert!(told.contains("`x` is not held by `nobody`, but by one (fence "), "{told}");
        }
        let (code, out, _) =
            home.call(["evict", "--store", &store, "--yes", "--holder", "one", "free", "--output", "json"]);
        let out: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &out["error"]["kind"]), (79, &"not_held".into()), "{out}");
        assert!(lives(its_pid));
        one.signal(Signal::TERM);
        one.end();
    }
}

#[test]
fn evict_refuses_a_label_of_several_holders_and_lists_their_fences() {
    let home = Home::in_memory();
    let store = format!("file:{}", home.path().join("locks").display());
    let (one, its_pid) = holder(&home, &store, "--ttl 60s --shared --owner reader");
    let (_two, other_pid) = holder(&home, &store, "--ttl 60s --shared --owner reader");
    let (code, out, told) = home.call(["evict", "--store", &store, "--yes", "--holder", "reader", "x"]);
    assert_eq!((code, out.as_str()), (64, ""), "{told}");
    assert!(told.contains("`reader` is the label of 2 holders of `x`; give the fence of one"), "{told}");
    assert!(lives(its_pid) && lives(other_pid));
    let (_, status, _) = home.call(["inspect", "--store", &store, "--output", "json", "x"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    for holder in status["holders"].as_array().unwrap() {
        assert!(told.contains(&format!("reader (fence {})", holder["fence"])), "{told}");
    }
    // A fence from this list names one of them.
    let fence = told.split("(fence ").nth(1).unwrap().split(')').next().unwrap();
    let (code, out, told) = home.call(["evict", "--store", &store, "--yes", "--holder", fence, "x"]);
    assert_eq!((code, out.as_str()), (0, "x was taken from reader\n"), "{told}");
    until(|| lives(its_pid) != lives(other_pid), "one of them to end");
    drop(one);
}

#[test]
fn evict_says_that_a_holder_without_a_fence_cannot_be_evicted_alone() {
    let home = Home::in_memory();
    let server = Server::start(Kind::Redis).unwrap();
    server.command(&["SET", "lock:x", "theirs", "PX", "600000"]).unwrap();
    let label = "another library";
    let (code, out, told) = home.call(["evict", "--store", &server.url(), "--yes", "--holder", label, "x"]);
    assert_eq!((code, out.as_str()), (64, ""), "{told}");
    assert!(told.contains("it has no fence; evict all holders, without --holder"), "{told}");
    assert_eq!(home.call(["inspect", "--store", &server.url(), "x"]).0, 75, "still held");
    assert_eq!(home.call(["evict", "--store", &server.url(), "--yes", "x"]).0, 0);
    assert_eq!(home.call(["inspect", "--store", &server.url(), "x"]).0, 0, "free");
}
