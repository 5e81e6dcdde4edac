//! `leasehold run` at a terminal: reading, Ctrl-C, Ctrl-Z, `fg`; in the foreground, where the command shares leasehold's
//! process group, and in the background, where it has its own.

use crate::common::roles::program;
use crate::common::terminal::Terminal;
use crate::common::{Home, kill, lives, until};

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

/// Says how often it was interrupted, until [`end`] is called.
fn counts_interrupts(home: &Home) {
    program(home, "counts");
}

fn end(home: &Home) {
    home.write("end", "now\n");
}

fn group_and_parent(pid: i32) -> (i32, i32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[2].parse().unwrap(), fields[1].parse().unwrap())
}

fn has_pending_interrupt(pid: i32) -> bool {
    const INT: u64 = 1 << 1;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("ShdPnd:").or(line.strip_prefix("SigPnd:")));
    pending.map(|mask| u64::from_str_radix(mask.trim(), 16).unwrap()).any(|mask| mask & INT != 0)
}

/// What it says of itself when it starts.
fn started(terminal: &mut Terminal) -> i32 {
    terminal.see("started ");
    terminal.see(".").parse().unwrap()
}

#[test]
fn in_the_foreground_it_reads_the_terminal() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- sh -c 'echo started $$.; read a; echo \"you said $a.\"'");
    started(&mut terminal);
    terminal.press("hello\n");
    terminal.see("you said hello.");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
    terminal.enter("leasehold run x -- sh -c 'echo started $$.; exec cat'");
    started(&mut terminal);
    terminal.press(CTRL_D);
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
}

#[test]
fn ctrl_c_comes_once_in_the_foreground() {
    let home = Home::in_memory();
    counts_interrupts(&home);
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- ./counts");
    let pid = started(&mut terminal);
    let (group, leasehold) = group_and_parent(pid);
    assert_eq!(group, group_and_parent(leasehold).0, "it shares leasehold's group");
    terminal.press(CTRL_C);
    terminal.see("interrupts: 1.");
    terminal.press(CTRL_C);
    terminal.see("interrupts: 2.");
    // The kernel merges a signal with one of the same kind that the process has not taken yet.
    until(|| !has_pending_interrupt(leasehold), "leasehold to take the second Ctrl-C");
    // One for leasehold alone goes on.
    let alone = format!("kill -INT {leasehold}");
    assert!(std::process::Command::new("sh").args(["-c", &alone]).status().unwrap().success());
    terminal.see("interrupts: 3.");
    end(&home);
    terminal.see("in all: 3.");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
    // One that does not care is ended, and so is leasehold.
    for (key, code) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
        terminal.enter("leasehold run x -- sh -c 'ulimit -c 0; echo started $$.; exec sleep 1000'");
        let pid = started(&mut terminal);
        terminal.press(key);
        terminal.see_prompt();
        assert_eq!(terminal.code(), code);
        assert!(!lives(pid));
    }
}

#[test]
fn ctrl_z_stops_it_and_fg_continues_it_in_time() {
    let home = Home::in_memory();
    counts_interrupts(&home);
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- ./counts");
    let pid = started(&mut terminal);
    terminal.press(CTRL_Z);
    terminal.see("Stopped");
    terminal.see_prompt();
    until(|| is_stopped(pid), "the command to be stopped too");
    terminal.enter("fg");
    until(|| !is_stopped(pid), "it to go on");
    terminal.press(CTRL_C);
    terminal.see("interrupts: 1.");
    end(&home);
    terminal.see("in all: 1.");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
}

#[test]
fn what_was_stopped_for_too_long_has_lost_its_lock() {
    let home = Home::in_memory();
    // One that does not mind Ctrl-Z: it must not run on while nobody renews its lease.
    home.script("deaf", "trap '' TSTP; mkfifo end; exec 3<> end; echo started $$.; read line <&3");
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run --ttl 2s x -- ./deaf");
    let pid = started(&mut terminal);
    terminal.press(CTRL_Z);
    terminal.see("Stopped");
    terminal.see_prompt();
    // The signal is sent. On a busy machine, the process stops when it gets a processor.
    until(|| is_stopped(pid), "the command to be stopped, though it ignores Ctrl-Z");
    // It is not renewed, so somebody else gets it.
    assert_eq!(home.call(["run", "-w", "60", "x", "--", "true"]).0, 0);
    assert!(is_stopped(pid));
    terminal.enter("fg");
    terminal.see("the lease on `x` was lost");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 79);
    assert!(!lives(pid));
}

#[test]
fn in_the_background_it_has_a_group_of_its_own_and_reads_after_fg() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- sh -c 'echo started $$.; read a; echo \"you said $a.\"' &");
    let pid = started(&mut terminal);
    assert_eq!(group_and_parent(pid).0, pid, "a group of its own");
    // It wants to read, and may not: the shell is told, as of any job.
    until(|| is_stopped(pid), "it to be stopped");
    until(|| terminal.ask("jobs").contains("Stopped"), "the shell to know");
    terminal.enter("fg");
    until(|| !is_stopped(pid), "it to go on");
    terminal.press("hello\n");
    terminal.see("you said hello.");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
}

#[test]
fn in_the_background_it_hears_what_is_sent_to_leasehold_and_stops_with_it() {
    let home = Home::in_memory();
    counts_interrupts(&home);
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- ./counts < /dev/null &");
    let pid = started(&mut terminal);
    terminal.enter("kill -INT %1");
    terminal.see("interrupts: 1.");
    terminal.enter("kill -TSTP %1");
    until(|| is_stopped(pid), "it to be stopped");
    until(|| terminal.ask("jobs").contains("Stopped"), "leasehold to be stopped");
    // In the foreground now: Ctrl-C comes once, whoever the terminal sends it to.
    terminal.enter("fg");
    until(|| !is_stopped(pid), "it to go on");
    terminal.press(CTRL_C);
    terminal.see("interrupts: 2.");
    terminal.press(CTRL_Z);
    terminal.see("Stopped");
    terminal.see_prompt();
    until(|| is_stopped(pid), "the command to be stopped");
    terminal.enter("bg");
    until(|| !is_stopped(pid), "it to go on");
    end(&home);
    terminal.see("in all: 2.");
    terminal.enter("wait");
    terminal.see_prompt();
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let home = Home::in_memory();
    for line in [
        "leasehold run x -- sh -c 'echo started $$.; sleep 1000; :'",
        "leasehold run x -- sh -c 'echo started $$.; sleep 1000; :' &",
    ] {
        let mut terminal = Terminal::open(&home);
        terminal.enter(line);
        let pid = started(&mut terminal);
        terminal.hang_up();
        until(|| !lives(pid), "the command to be gone with its terminal");
        until(|| home.call(["inspect", "x"]).0 == 0, "the lock to be free");
    }
}

#[test]
fn a_line_says_who_has_it_while_it_waits_and_is_gone_then() {
    let home = Home::in_memory();
    let mut holder = home.start(["run", "--owner", "somebody", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(holder.line(), "ready");
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- echo mine");
    terminal.see("waiting for x: held by somebody for ");
    terminal.see(" for another 2");
    terminal.see("s unless renewed (");
    terminal.see(" so far)");
    // Ctrl-C leaves the line.
    terminal.press(CTRL_C);
    terminal.see("\r\x1b[K");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 130);
    assert!(!home.call(["inspect", "x"]).1.contains("in line"));
    terminal.enter("leasehold run x -- echo mine");
    terminal.see("waiting for x: held by somebody");
    holder.end();
    terminal.see("\r\x1b[K");
    terminal.see("mine");
    terminal.see_prompt();
    // Nothing where nobody wants to hear it, and nothing where it is had at once.
    assert!(!terminal.ask("leasehold run x -- echo mine").contains("waiting"));
    // On a pipe: one line that stays.
    let mut holder = home.start(["run", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(holder.line(), "ready");
    let piped = terminal.ask("leasehold run -w 2 x -- true 2>&1 | cat");
    assert_eq!(piped.matches("leasehold: waiting for x: held by ").count(), 1, "{piped}");
    assert!(!terminal.ask("leasehold -q run -w 2 x -- true").contains("waiting"));
    // Who waits can be stopped, too.
    terminal.enter("leasehold run x -- echo mine");
    terminal.see("waiting for x");
    terminal.press(CTRL_Z);
    terminal.see("Stopped");
    terminal.see_prompt();
    holder.end();
    terminal.enter("fg");
    terminal.see("mine");
    terminal.see_prompt();
}

#[test]
fn ctrl_c_ends_the_script_around_it_too() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    let line = "leasehold run x -- sh -c 'echo started $$.; exec sleep 1000'";
    terminal.enter(&format!("for i in 1 2 3; do {line}; echo after; done"));
    started(&mut terminal);
    terminal.press(CTRL_C);
    let told = terminal.see_prompt();
    assert!(!told.contains("after") && !told.contains("started"), "{told:?}");
    assert_eq!(terminal.code(), 130);
    // While it waits, too.
    let mut holder = home.start(["run", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(holder.line(), "ready");
    terminal.enter("for i in 1 2 3; do leasehold run x -- true; echo after; done");
    terminal.see("waiting for x");
    terminal.press(CTRL_C);
    assert!(!terminal.see_prompt().contains("after"));
    assert_eq!(terminal.code(), 130);
}

#[test]
fn one_that_stops_itself_is_a_stopped_job() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- sh -c 'echo started $$.; kill -TSTP $$; echo back again.'");
    started(&mut terminal);
    terminal.see("Stopped");
    terminal.see_prompt();
    terminal.enter("fg");
    terminal.see("back again.");
    terminal.see_prompt();
    assert_eq!(terminal.code(), 0);
}

#[test]
fn in_the_background_of_a_script_it_reads_after_fg() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    terminal
        .enter("sh -c 'leasehold run x -- sh -c \"echo started \\$\\$.; read b; echo \\\"b=\\$b.\\\"\"' &");
    let pid = started(&mut terminal);
    until(|| is_stopped(pid), "it to be stopped");
    until(|| terminal.ask("jobs").contains("Stopped"), "the shell to know");
    terminal.enter("fg");
    until(|| !is_stopped(pid), "it to go on");
    terminal.press("one\n");
    terminal.see("b=one.");
}

#[test]
fn a_terminal_that_stops_whoever_writes_from_the_background_does_not_stop_it() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    terminal.ask("stty tostop");
    // It has something to say when its command has ended.
    terminal.enter("leasehold run --ttl 2s x -- sh -c 'exec > /dev/null 2>&1; sleep 1000 & echo $! > pid' &");
    until(|| !home.read("pid").is_empty(), "the command to start");
    // Longer than its TTL: somebody renews it.
    assert_eq!(home.call(["run", "-w", "3", "x", "--", "true"]).0, 75);
    assert!(!terminal.ask("jobs").contains("Stopped"));
    // And it is told when it may be.
    terminal.enter("fg");
    terminal.see("something it started still runs");
    kill(home.read("pid").trim().parse().unwrap());
    terminal.see_prompt();
}

#[test]
fn a_terminal_that_is_gone_ends_one_that_leads_its_session() {
    let home = Home::in_memory();
    // Like `ssh -t host leasehold run …`, and the connection breaks.
    let mut running =
        Terminal::of(&home, &["leasehold", "run", "x", "--", "sh", "-c", "echo started $$.; sleep 1000; :"]);
    let pid = started(&mut running);
    running.break_off();
    until(|| !lives(pid), "the command to be gone with its terminal");
    until(|| home.call(["inspect", "x"]).0 == 0, "the lock to be free");
}

/// The same while leasehold has hardly started its command: on a processor that has no time for it.
#[test]
fn a_terminal_that_is_gone_early_ends_everything_too() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let all = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let one = all.split([',', '-']).next().unwrap();
    let home = Home::in_memory();
    let mut hog = std::process::Command::new("taskset")
        .args(["-c", one, "sh", "-c", "while kill -0 $PPID; do :; done"])
        .spawn()
        .unwrap();
    // The session as a whole has little weight there, whether or not the kernel weighs sessions.
    let slowly = "echo 19 > /proc/self/autogroup; exec chrt --idle 0 \"$@\"";
    let slow = ["taskset", "-c", one, "sh", "-c", slowly, "sh"];
    let run = ["leasehold", "run", "x", "--", "taskset", "-c", all];
    let command = ["sh", "-c", "echo started $$.; sleep 1000; :"];
    let mut running = Terminal::of(&home, &[&slow[..], &run, &command].concat());
    let pid = started(&mut running);
    running.break_off();
    until(|| !lives(pid), "the command to be gone with its terminal");
    hog.kill().unwrap();
    hog.wait().unwrap();
    until(|| home.call(["inspect", "x"]).0 == 0, "the lock to be free");
}

#[test]
fn a_stopped_screen_does_not_keep_a_waiter_from_ending() {
    let home = Home::in_memory();
    let mut holder = home.start(["run", "x", "--", "sh", "-c", "echo ready; cat"]);
    assert_eq!(holder.line(), "ready");
    let mut terminal = Terminal::open(&home);
    terminal.enter("leasehold run x -- true & echo \"waiter $!.\"");
    terminal.see("waiter ");
    let pid: i32 = terminal.see(".").parse().unwrap();
    terminal.see("waiting for x");
    terminal.press("\x13");
    // It has had time to write into a terminal that takes nothing.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    until(|| !home.call(["inspect", "x"]).1.contains("in line"), "it to leave the line");
    terminal.press("\x11");
    assert_eq!(holder.end().0, 0);
}

#[test]
fn without_a_shell_to_continue_it_ctrl_z_means_nothing() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    // Like `ssh -t host leasehold run …`: nobody is there for `fg`.
    terminal.enter("exec leasehold run x -- sh -c 'echo started $$.; read a; echo \"you said $a.\"'");
    let pid = started(&mut terminal);
    terminal.press(CTRL_Z);
    terminal.press("hello\n");
    terminal.see("you said hello.");
    until(|| !lives(pid), "it to end");
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// A shell without job control starts background processes that ignore INT and QUIT.
#[test]
fn ctrl_c_and_ctrl_backslash_end_what_an_ended_command_left_behind() {
    let home = Home::in_memory();
    let mut terminal = Terminal::open(&home);
    for (keys, code) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
        terminal.enter("leasehold run -k 60s --ttl 10m x -- sh -c 'sleep 1000 & echo started $!.'");
        let pid = started(&mut terminal);
        terminal.see("`x` is held until that ends too");
        terminal.press(keys);
        terminal.see("Ending what");
        terminal.see_prompt();
        assert_eq!(terminal.code(), code);
        assert!(!lives(pid));
    }
    // One that does not want to end is killed when the keys are pressed again, long before its grace is over.
    // The command ends when its background process ignores TERM: only then does `leasehold` say what is left.
    terminal.enter("leasehold run -k 60s --ttl 10m x -- sh -c '(trap \"\" TERM; >trapped; while :; do sleep 1; done) & until [ -e trapped ]; do sleep 0.01; done; echo started $$.'");
    started(&mut terminal);
    terminal.see("`x` is held until that ends too");
    terminal.press(CTRL_C);
    terminal.see("Ending what");
    terminal.press(CTRL_C);
    terminal.see_prompt();
    assert_eq!(terminal.code(), 130);
    assert_eq!(home.run("run -n x -- true").0, 0, "the lock is free");
}
