//! The checks of `docs/fencing.md`, taken from the page and run: on Redis and Valkey, PostgreSQL, SQLite, and a stand-in for what
//! keeps objects. Each refuses an older fence, also between the look and the write of another; and without the check, the old
//! holder overwrites the new one.
#![cfg(all(feature = "redis", target_os = "linux"))]

use leasehold_testkit as common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use common::secs;
use leasehold::{Error, Fence};
use leasehold_lab::{Kind, Postgres, Server};

const PAGE: &str = include_str!("../../../../docs/fencing.md");

/// The blocks of a section, in their order.
fn blocks(section: &str, language: &str) -> Vec<&'static str> {
    let section = PAGE.split("\n## ").find(|text| text.starts_with(section)).unwrap();
    let mark = format!("```{language}\n");
    section.split(&mark).skip(1).map(|block| block.split("\n```").next().unwrap()).collect()
}

#[tokio::test]
async fn redis_refuses_an_older_fence() {
    let [check] = blocks("Redis", "lua").try_into().unwrap();
    for kind in Kind::ALL {
        let server = Server::start(kind).unwrap();
        let locks = leasehold::connect(&server.url()).await.unwrap();
        let script = locks.cells().script(check);
        let write = async |fence: u64, value: &str| {
            let call = script.call().key("{order:42}:data").key("{order:42}:fence");
            call.arg(Fence::new(fence).unwrap()).arg(value).run::<bool>().await
        };
        let data = || server.command(&["GET", "{order:42}:data"]).unwrap().text().unwrap().to_owned();
        for (fence, below) in
            [(9, 7), (10, 9), (1 << 53, (1 << 53) - 1), ((1 << 53) + 1, 1 << 53), (Fence::MAX, 10)]
        {
            assert!(write(fence, "new").await.unwrap());
            let error = write(below, "late").await.unwrap_err();
            let says = format!("fence {below} is below {fence}");
            assert!(matches!(&error, Error::Refused { why, .. } if why.contains(&says)), "{error}");
            assert_eq!(data(), "new");
            assert!(write(fence, "again").await.unwrap(), "the same holder");
            assert_eq!(data(), "again");
        }
    }
}

/// A session that goes on: what is said to it, and what it says.
struct Session {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Session {
    fn new(postgres: &Postgres) -> Self {
        let mut command = postgres.psql();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Session { child, said }
    }

    fn tell(&mut self, sql: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{sql};").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.said.read_line(&mut line).unwrap() > 0, "it has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn postgresql_refuses_an_older_fence() {
    let [orders, upsert, update, fences, enter] = blocks("PostgreSQL", "sql").try_into().unwrap();
    let postgres = Postgres::start().unwrap();
    let ask = |sql: &str| postgres.sql(sql).unwrap().unwrap();
    ask(orders);
    ask(fences);
    let prepared = format!(
        "PREPARE upsert (bigint, text, bigint) AS {upsert}; PREPARE change (bigint, text, bigint) AS {update};
         PREPARE enter (text, bigint) AS {enter}"
    );
    let execute = |what: &str| ask(&format!("{prepared}; EXECUTE {what}"));
    let status = || ask("SELECT status, fence FROM orders WHERE id = 42");
    assert!(execute("upsert(42, 'nine', 9)").ends_with("INSERT 0 1"));
    for (what, says) in [("upsert", "INSERT 0 0"), ("change", "UPDATE 0")] {
        assert!(execute(&format!("{what}(42, 'late', 8)")).ends_with(says), "{what}");
        assert_eq!(status(), "nine|9", "{what}");
    }
    assert!(execute("change(42, 'again', 9)").ends_with("UPDATE 1"), "the same holder");
    assert!(execute(&format!("upsert(42, 'last', {})", Fence::MAX)).ends_with("INSERT 0 1"), "it fits");
    ask("DELETE FROM orders");

    // Two at once: whoever waits for the other looks again.
    for (what, says) in [("upsert(42, 'late', 7)", "INSERT 0 0"), ("change(42, 'late', 7)", "UPDATE 0")] {
        assert!(execute("upsert(42, 'old', 5)").ends_with("INSERT 0 1"));
        let (mut newer, mut older) = (Session::new(&postgres), Session::new(&postgres));
        newer.tell(&format!("{prepared}; BEGIN; EXECUTE upsert(42, 'new', 9)"));
        while newer.hear() != "INSERT 0 1" {}
        older.tell(&format!("{prepared}; EXECUTE {what}"));
        let start = Instant::now();
        while ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != "1" {
            assert!(start.elapsed() < secs(30), "nobody waits");
        }
        newer.tell("COMMIT");
        assert_eq!(newer.hear(), "COMMIT");
        while !older.hear().starts_with(&says[..6]) {}
        assert_eq!(status(), "new|9", "{what}");
        ask("DELETE FROM orders");
    }

    // The table of fences: no row is no.
    assert!(execute("enter('order:42', 9)").contains("\n9\n"));
    assert!(!execute("enter('order:42', 8)").contains("\n9\n"));
    assert!(execute("enter('order:42', 8)").ends_with("INSERT 0 0"));
    assert!(execute("enter('order:42', 9)").contains("\n9\n"), "the same holder");
    assert!(execute("enter('order:7', 1)").contains("\n1\n"), "another name");

    // Without the check.
    execute("upsert(42, 'new', 9)");
    ask("UPDATE orders SET status = 'late' WHERE id = 42");
    assert_eq!(status(), "late|9");
}

#[test]
fn sqlite_refuses_an_older_fence() {
    let [orders, upsert] = blocks("SQLite", "sql").try_into().unwrap();
    let home = common::home_in_memory("fencing");
    let open = || {
        let db = rusqlite::Connection::open(home.path().join("orders.db")).unwrap();
        db.busy_timeout(secs(30)).unwrap();
        db
    };
    let db = open();
    db.execute_batch(orders).unwrap();
    let write = |db: &rusqlite::Connection, status: &str, fence: u64| {
        db.execute(upsert, rusqlite::params![42, status, fence as i64]).unwrap()
    };
    let status = || db.query_row("SELECT status FROM orders", [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(write(&db, "nine", 9), 1);
    assert_eq!(write(&db, "late", 8), 0);
    assert_eq!(status(), "nine");
    assert_eq!(write(&db, "again", 9), 1, "the same holder");
    // Eight at once, in any order: the highest stays.
    std::thread::scope(|scope| {
        for fence in 10..18 {
            scope.spawn(move || write(&open(), &fence.to_string(), fence));
        }
    });
    assert_eq!(status(), "17");
    assert_eq!(write(&db, "last", Fence::MAX), 1, "it fits");
    assert_eq!(write(&db, "late", Fence::MAX - 1), 0);
}

/// What keeps objects: `HEAD`, `PUT`, `ETag`, and both conditions, one request after the other.
#[derive(Default)]
struct Objects(HashMap<String, (u64, String, Vec<u8>)>, u64);

impl Objects {
    fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let objects = Arc::new(Mutex::new(Objects::default()));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let objects = objects.clone();
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let (head, body) = heard(&mut BufReader::new(&stream));
                    let answer = objects.lock().unwrap().answer(&head, body);
                    stream.write_all(answer.as_bytes()).unwrap();
                });
            }
        });
        addr
    }

    fn answer(&mut self, head: &[String], body: Vec<u8>) -> String {
        let [method, path] =
            head[0].split(' ').take(2).map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        let there = self.0.get(&path);
        let tag = there.map(|(tag, ..)| format!("\"{tag}\""));
        match method.as_str() {
            "HEAD" => match there {
                Some((tag, fence, _)) => {
                    format!("HTTP/1.1 200 OK\r\nETag: \"{tag}\"\r\nx-amz-meta-fence: {fence}\r\n\r\n")
                }
                None => "HTTP/1.1 404 Not Found\r\n\r\n".to_owned(),
            },
            "PUT" => {
                let unmatched = header(head, "If-Match").is_some_and(|wanted| tag.as_deref() != Some(wanted));
                if unmatched || header(head, "If-None-Match") == Some("*") && there.is_some() {
                    return "HTTP/1.1 412 Precondition Failed\r\n\r\n".to_owned();
                }
                self.1 += 1;
                let fence = header(head, "x-amz-meta-fence").unwrap_or_default().to_owned();
                self.0.insert(path, (self.1, fence, body));
                "HTTP/1.1 200 OK\r\n\r\n".to_owned()
            }
            other => panic!("{other}"),
        }
    }
}

fn header<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter()
        .find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)))
        .map(|it| it.1)
}

/// The lines before the empty one, and what comes after it.
fn heard(from: &mut impl BufRead) -> (Vec<String>, Vec<u8>) {
    let mut head: Vec<String> = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length = header(&head, "Content-Length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    from.read_exact(&mut body).unwrap();
    (head, body)
}

/// A request of the page, with this in the places of its capitals.
fn send(to: SocketAddr, request: &str, etag: &str, fence: u64, body: &str) -> Vec<String> {
    let request = request.replace("ETAG", etag).replace("FENCE", &fence.to_string()).replace('\n', "\r\n");
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "{request}\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    heard(&mut BufReader::new(stream)).0
}

#[test]
fn objects_refuse_an_older_fence() {
    let [head, replace, create] = blocks("Objects", "http").try_into().unwrap();
    let to = Objects::start();
    let is = |answer: &[String], code: &str| answer[0].split(' ').nth(1) == Some(code);
    // As the page says; `between` comes between the look and the put. Says whether it was written.
    let put = |fence: u64, body: &str, between: &dyn Fn()| {
        for _ in 0..10 {
            let there = send(to, head, "", 0, "");
            if header(&there, "x-amz-meta-fence").is_some_and(|seen| seen.parse::<u64>().unwrap() > fence) {
                return false;
            }
            between();
            let done = match header(&there, "ETag") {
                Some(etag) => send(to, replace, etag, fence, body),
                None => send(to, create, "", fence, body),
            };
            if !is(&done, "412") {
                assert!(is(&done, "200"), "{done:?}");
                return true;
            }
        }
        panic!("somebody is always faster");
    };
    let fence = || header(&send(to, head, "", 0, ""), "x-amz-meta-fence").map(str::to_owned);
    let nobody = || {};
    assert!(is(&send(to, head, "", 0, ""), "404"));
    // Where there is none, the newer one may come between too.
    assert!(!put(5, "late", &|| assert!(put(7, "new", &nobody))));
    assert_eq!(fence().as_deref(), Some("7"));
    assert!(put(7, "again", &nobody), "the same holder");
    assert!(!put(6, "late", &nobody));
    let once = std::cell::Cell::new(true);
    let newer = || {
        if once.replace(false) {
            assert!(put(9, "new", &nobody));
        }
    };
    assert!(!put(8, "late", &newer), "the newer one came between the look and the put");
    assert_eq!(fence().as_deref(), Some("9"));
    // Without the condition, the late one is the last.
    let there = send(to, head, "", 0, "");
    assert!(is(&there, "200"));
    assert!(put(11, "new", &nobody));
    let plain = replace.lines().filter(|line| !line.starts_with("If-")).collect::<Vec<_>>().join("\n");
    assert!(is(&send(to, &plain, "", 10, "late"), "200"));
    assert_eq!(fence().as_deref(), Some("10"));
}
