//! `leasehold run` whose lease is lost: everything is dead before somebody else can have it.

use std::fs::File;
use std::time::{Duration, Instant};

use crate::common::{Home, Running, lives, until};
use rustix::process::Signal;

/// A command that ignores TERM, and what it starts: (itself, a child, one in another session). Each writes the
/// time into `beats` again and again, for as long as it lives.
fn stubborn(home: &Home) -> String {
    let beat = home.script(
        "beat",
        "trap '' TERM
        while :; do read -r now rest < /proc/uptime; echo \"$now\" >> beats; sleep 0.02; done",
    );
    home.script("stubborn", &format!("{beat} & echo $!\nsetsid {beat} & echo $!\necho $$\nexec {beat}"))
}

/// A program that writes down what it is told.
fn hook(home: &Home) -> String {
    home.script(
        "hook",
        "echo \"$LEASEHOLD_NAME $LEASEHOLD_OWNER $LEASEHOLD_FENCE $LEASEHOLD_LOSS $#\" > told",
    )
}

fn start(home: &Home) -> (Running, Vec<i32>) {
    let (command, hook) = (stubborn(home), hook(home));
    let mut running = home.start([
        "run",
        "--ttl",
        "4s",
        "-k",
        "1s",
        "--owner",
        "me",
        "--on-lost-exec",
        &hook,
        "x",
        "--",
        &command,
    ]);
    let pids = (0..3).map(|_| running.pid()).collect();
    (running, pids)
}

/// Waits until all are dead, and checks that none of them ran at the deadline. What they wrote is what counts:
/// this process may look late.
fn all_died_before(deadline: Instant, pids: &[i32], home: &Home) {
    until(|| pids.iter().all(|pid| !lives(*pid)), "everything to be dead");
    let since_boot = |time: rustix::time::Timespec| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    let past_deadline = Instant::now().duration_since(deadline).as_secs_f64();
    let now = since_boot(rustix::time::clock_gettime(rustix::time::ClockId::Boottime));
    let beats = home.read("beats");
    let last = beats.lines().filter_map(|beat| beat.parse::<f64>().ok()).fold(0.0, f64::max);
    assert!(
        last > 0.0 && last < now - past_deadline,
        "it ran {} s after the deadline",
        last - now + past_deadline
    );
}

fn fence(home: &Home) -> String {
    let (_, told, _) = home.call(["inspect", "x", "--output", "json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    told["holders"][0]["fence"].to_string()
}

#[test]
fn a_lease_deleted_from_the_store_ends_the_command_before_its_deadline() {
    let home = Home::in_memory();
    let (running, pids) = start(&home);
    let fence = fence(&home);
    // Of what was granted, the latest that can be at this moment.
    let deadline = home.deadline("x");
    let db = rusqlite::Connection::open(home.store().join("locks.db")).unwrap();
    db.busy_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(db.execute("DELETE FROM holding", []).unwrap(), 1);
    all_died_before(deadline, &pids, &home);
    let (code, _, told) = running.end();
    assert_eq!(code, 79, "{told}");
    assert!(told.contains("the lease on `x` was lost: it was deleted or evicted from the store"), "{told}");
    assert!(told.contains("Ending `") && told.contains("and everything it started"), "{told}");
    assert!(told.contains("before you run it again"), "{told}");
    assert_eq!(home.read("told"), format!("x me {fence} deleted 0\n"));
}

#[test]
fn an_evicted_one_is_ended_and_has_its_grace() {
    let home = Home::in_memory();
    let script = "trap 'echo cleaning up; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut running = home.start(["run", "--ttl", "4s", "x", "--", "sh", "-c", script]);
    assert_eq!(running.line(), "ready");
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    assert_eq!(running.line(), "cleaning up");
    let (code, _, told) = running.end();
    assert!(code == 79 && told.contains("`sh` ended with exit code 0, without its lock"), "{told}");
}

#[test]
fn a_store_that_hangs_ends_the_command_before_its_deadline() {
    let home = Home::in_memory();
    let (running, pids) = start(&home);
    let fence = fence(&home);
    // Nobody else gets through to the store any more. Whatever was renewed, was renewed before this.
    let gate = File::options().write(true).open(home.store().join("gate")).unwrap();
    gate.lock().unwrap();
    let latest = Instant::now() + Duration::from_secs(4);
    all_died_before(latest, &pids, &home);
    let (code, _, told) = running.end();
    drop(gate);
    assert_eq!(code, 79, "{told}");
    assert!(
        told.contains("the lease on `x` could not be renewed (") && told.contains("and ends in 1."),
        "{told}"
    );
    assert!(told.contains("before you run it again"), "{told}");
    assert_eq!(home.read("told"), format!("x me {fence} unreachable 0\n"));
}

#[test]
fn a_reader_that_does_not_read_keeps_nobody_from_ending_it() {
    let home = Home::in_memory();
    // Standard error is full before leasehold has anything to say.
    let script = "echo $$; trap '' TERM; yes >&2";
    let mut running = home.start(["run", "--ttl", "2s", "x", "--", "sh", "-c", script]);
    let pid = running.pid();
    let told = running.child.stderr.take().unwrap();
    let full = || rustix::io::ioctl_fionread(&told).unwrap() >= 60_000;
    until(full, "the pipe to be full");
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    until(|| !lives(pid), "the command to be ended");
    assert_eq!(running.end().0, 79);
    drop(told);
}

#[test]
fn a_signal_is_all_it_gets_where_that_was_asked_for() {
    let home = Home::in_memory();
    let script = "trap 'echo got it; cat; exit 3' USR1; echo ready; while :; do sleep 0.01; done";
    let mut running = home.start([
        "run",
        "--ttl",
        "500ms",
        "--on-lost",
        "signal",
        "--signal",
        "USR1",
        "x",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(running.line(), "ready");
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    assert_eq!(running.line(), "got it");
    // Somebody else has it long since, and nobody killed it.
    assert_eq!(home.call(["run", "x", "--", "true"]).0, 0);
    let (code, _, told) = running.end();
    assert_eq!(code, 79);
    assert!(told.contains("was sent SIGUSR1; until it ends, it runs without the lock"), "{told}");
    assert!(told.contains("`sh` ended with exit code 3, without its lock"), "{told}");
}

#[test]
fn it_runs_on_where_that_was_asked_for() {
    let home = Home::in_memory();
    let hook = hook(&home);
    let mut running = home.start([
        "run",
        "--ttl",
        "500ms",
        "--on-lost",
        "continue",
        "--on-lost-exec",
        &hook,
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; cat; echo done",
    ]);
    assert_eq!(running.line(), "ready");
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    until(|| home.read("told").contains("deleted"), "the hook");
    assert_eq!(home.call(["run", "x", "--", "true"]).0, 0);
    let (code, out, told) = running.end();
    assert_eq!((code, out.as_str()), (79, "done\n"), "what was not protected to its end is no success");
    assert!(told.contains("runs on without the lock, as --on-lost continue says"), "{told}");
}

#[test]
fn a_loss_that_shows_at_the_end_is_one_too() {
    let home = Home::in_memory();
    let mut running = home.start(["run", "--ttl", "300s", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(running.line(), "ready");
    // An eviction would be told to it at once.
    let db = rusqlite::Connection::open(home.store().join("locks.db")).unwrap();
    db.busy_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(db.execute("DELETE FROM holding", []).unwrap(), 1);
    // Long before the next renewal.
    let (code, _, told) = running.end();
    assert_eq!(code, 79);
    assert!(told.contains("`x` was lost"), "{told}");
    assert!(told.contains("`sh` ended with exit code 0, without its lock"), "{told}");
}

#[test]
fn a_hook_that_cannot_be_run_is_told_of() {
    let home = Home::in_memory();
    let hook = home.script("hook", "true");
    let mut running = home.start([
        "run",
        "--ttl",
        "2s",
        "--on-lost-exec",
        "./hook",
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; sleep 1000",
    ]);
    assert_eq!(running.line(), "ready");
    // It was there at the start.
    std::fs::remove_file(hook).unwrap();
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    let (code, _, told) = running.end();
    assert_eq!(code, 79);
    assert!(told.contains("cannot run `./hook`, the program of --on-lost-exec: No such file"), "{told}");
}

#[test]
fn a_stopped_leasehold_finds_its_lease_lost_and_its_command_does_not_run_on() {
    let home = Home::in_memory();
    let mut running = home.start([
        "run",
        "--ttl",
        "2s",
        "x",
        "--",
        "sh",
        "-c",
        "echo $$; trap '' TERM; while :; do sleep 0.01; done",
    ]);
    let pid = running.pid();
    // As a debugger or a container runtime would.
    running.signal(Signal::STOP);
    assert_eq!(home.call(["run", "-w", "60", "x", "--", "true"]).0, 0, "its TTL is over");
    assert!(lives(pid), "which is what fences are for");
    let woken = Instant::now();
    running.signal(Signal::CONT);
    until(|| !lives(pid), "the command to be killed");
    assert!(woken.elapsed() < Duration::from_secs(1), "at once, without any grace");
    let (code, _, told) = running.end();
    assert!(code == 79 && told.contains("`x` was lost"), "{told}");
}

#[test]
fn a_bomb_of_processes_is_ended() {
    let home = Home::in_memory();
    // Each starts the next in a new session and ends: nobody is there for long.
    let bomb = home.script(
        "bomb",
        "echo $$ >> pids; trap '' TERM; [ $(wc -l < pids) -gt 3000 ] && exit; setsid ./bomb & exit 0",
    );
    let running = home.start(["run", "--max-runtime", "300ms", "-k", "0", "x", "--", &bomb]);
    let (code, _, told) = running.end();
    assert_eq!(code, 124, "{told}");
    let pids = home.read("pids");
    let count = pids.lines().count();
    assert!((3..3_000).contains(&count), "it was ended in between: {count}");
    assert!(pids.lines().all(|pid| !lives(pid.parse().unwrap())), "nothing is left");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(home.read("pids"), pids, "and nothing comes back");
}

#[test]
fn what_runs_on_without_its_lock_may_still_run_too_long() {
    let home = Home::in_memory();
    let mut running = home.start([
        "run",
        "--ttl",
        "500ms",
        "--on-lost",
        "continue",
        "--max-runtime",
        "2s",
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 1000",
    ]);
    assert_eq!(running.line(), "ready");
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    let (code, _, told) = running.end();
    assert_eq!(code, 79, "{told}");
    assert!(told.contains("runs on without the lock") && told.contains("ran for longer than"), "{told}");
}

#[test]
fn a_hook_may_go_on_in_the_background_and_speaks_to_people() {
    let home = Home::in_memory();
    let hook = home.script("hook", "echo I am told; (sleep 0.7; echo done > done) > /dev/null 2>&1 &");
    let mut running = home.start([
        "run",
        "--ttl",
        "2s",
        "--on-lost-exec",
        &hook,
        "x",
        "--",
        "sh",
        "-c",
        "echo ready; sleep 1000",
    ]);
    assert_eq!(running.line(), "ready");
    assert_eq!(home.call(["evict", "x", "--yes"]).0, 0);
    let (code, out, told) = running.end();
    assert_eq!((code, out.as_str()), (79, ""), "standard output is the command's");
    assert!(told.contains("I am told"), "{told}");
    until(|| home.read("done") == "done\n", "what the hook left in the background");
}
