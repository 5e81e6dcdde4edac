//! Programs that tests have run: the test program itself, in a role. What a shell does between a trap and a read is not
//! for a test to rely on.

use std::io::Read;

use signal_hook::iterator::Signals;

use super::Home;

const ROLE: &str = "LEASEHOLD_TEST_ROLE";

/// A program in this role.
pub(crate) fn program(home: &Home, role: &str) -> String {
    let file = role.replace(' ', "_");
    let binary = std::env::current_exe().unwrap();
    // The test harness knows a test by its path without the crate.
    let (_, module) = module_path!().split_once("::").unwrap();
    let run = format!("{ROLE}='{role}' exec '{}' --exact {module}::worker --nocapture", binary.display());
    home.script(&file, &run)
}

/// What the programs do; nothing where there is no role. Tests look only for the lines that a role
/// says.
#[test]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, argument) = role.split_once(' ').unwrap_or((&role, ""));
    match role {
        "counts" => counts(),
        "leads" => leads(),
        "traps" => traps(argument.parse().unwrap()),
        other => panic!("no role `{other}`"),
    }
}

/// Says each time it is interrupted; ends when something is written into the pipe `end`, and says how often it was.
fn counts() {
    let _ = std::process::Command::new("mkfifo").arg("end").stderr(std::process::Stdio::null()).status();
    let mut end = std::fs::File::options().read(true).write(true).open("end").unwrap();
    let mut signals = Signals::new([signal_hook::consts::SIGINT]).unwrap();
    let handle = signals.handle();
    std::thread::spawn(move || {
        end.read_exact(&mut [0]).unwrap();
        handle.close();
    });
    println!("started {}.", std::process::id());
    let mut interrupts = 0;
    for _ in signals.forever() {
        interrupts += 1;
        println!("interrupts: {interrupts}.");
    }
    println!("in all: {interrupts}.");
    std::process::exit(0);
}

/// Writes its term, its own number and its parent's into the file `terms`, again and again: what only a leader may do.
fn leads() {
    use std::io::Write;
    let mut terms = std::fs::File::options().append(true).create(true).open("terms").unwrap();
    let term = std::env::var("LEASEHOLD_FENCE").unwrap();
    let line = format!("{term} {} {}\n", std::process::id(), std::os::unix::process::parent_id());
    loop {
        terms.write_all(line.as_bytes()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Says which signal it got, and ends when its standard input does; says so again if it gets it twice.
fn traps(signal: i32) {
    let mut signals = Signals::new([signal]).unwrap();
    println!("ready");
    signals.forever().next();
    println!("got {signal}");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    signals.pending().for_each(|_| println!("got {signal} again"));
    std::process::exit(7);
}
