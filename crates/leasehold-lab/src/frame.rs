//! Where one message of the Redis protocol ends and the next begins (RESP2 and RESP3).

/// Longer than any server takes: beyond that, it is no length but garbage.
const LENGTH_MAX: usize = 512 * 1024 * 1024;

/// What a message begins with.
const KINDS: &[u8] = b"+-:_#,($!=*~>%|";

/// What begins a TLS connection, and no request.
const TLS_HANDSHAKE: u8 = 0x16;

/// What was found at the beginning of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A whole message, so many bytes long.
    Whole(usize),
    /// The beginning of one.
    More,
    /// Something else.
    Garbage,
}

/// A reply, or what a server sends unasked.
pub(crate) fn reply(bytes: &[u8]) -> Found {
    let (mut at, mut due) = (0, 1usize);
    while due > 0 {
        // Before the end of the line: what is garbage may have none.
        let Some(kind) = bytes.get(at).copied() else {
            return Found::More;
        };
        if !KINDS.contains(&kind) {
            return Found::Garbage;
        }
        let Some(line) = line(&bytes[at..]) else {
            return Found::More;
        };
        let length = &line[1..];
        at += line.len() + 2;
        due -= 1;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            _ => {
                let n = match number(length).map(|n| (n, usize::try_from(n))) {
                    Some((-1, _)) => continue,
                    Some((_, Ok(n))) if n <= LENGTH_MAX => n,
                    _ => return Found::Garbage,
                };
                match kind {
                    b'$' | b'!' | b'=' => at += n + 2,
                    b'%' => due += 2 * n,
                    // An attribute stands before what it belongs to.
                    b'|' => due += 2 * n + 1,
                    _ => due += n,
                }
            }
        }
        if at > bytes.len() {
            return Found::More;
        }
    }
    Found::Whole(at)
}

/// A request: an array, or a line as somebody types it.
pub(crate) fn request(bytes: &[u8]) -> Found {
    match bytes.first() {
        None => Found::More,
        Some(b'*') => reply(bytes),
        Some(&TLS_HANDSHAKE) => Found::Garbage,
        Some(_) => match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => Found::Whole(end + 1),
            None => Found::More,
        },
    }
}

/// The command of a whole request, in capitals; empty if there is none in it, which servers do not answer.
pub(crate) fn command(request: &[u8]) -> String {
    let word = if request.starts_with(b"*") {
        first_bulk(request).unwrap_or_default()
    } else {
        request.split(u8::is_ascii_whitespace).find(|word| !word.is_empty()).unwrap_or_default()
    };
    String::from_utf8_lossy(word).to_ascii_uppercase()
}

/// The first element of an array, where it is a bulk string.
pub(crate) fn first_bulk(array: &[u8]) -> Option<&[u8]> {
    let head = line(array)?.len() + 2;
    let length = line(&array[head..])?;
    let n = usize::try_from(number(length.strip_prefix(b"$")?)?).ok()?;
    array.get(head + length.len() + 2..)?.get(..n)
}

/// Up to the end of the line, without it; `None` if it is not there yet.
pub(crate) fn line(bytes: &[u8]) -> Option<&[u8]> {
    bytes.windows(2).position(|pair| pair == b"\r\n").map(|end| &bytes[..end])
}

pub(crate) fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n",
        b"%1\r\n+key\r\n*2\r\n:1\r\n_\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
        b"#t\r\n",
        b",1.5\r\n",
    ];

    #[test]
    fn a_reply_ends_where_it_ends_and_no_byte_earlier() {
        for whole in REPLIES {
            for cut in 0..whole.len() {
                assert_eq!(reply(&whole[..cut]), Found::More, "{:?}", &whole[..cut].escape_ascii());
            }
            let two = [*whole, *whole].concat();
            assert_eq!(reply(&two), Found::Whole(whole.len()), "{:?}", whole.escape_ascii());
        }
    }

    #[test]
    fn requests_are_known_by_their_command() {
        for (text, name) in [
            ("*2\r\n$3\r\nget\r\n$1\r\na\r\n", "GET"),
            ("PING\r\n", "PING"),
            ("  set a b\n", "SET"),
            ("\r\n", ""),
            ("*0\r\n", ""),
        ] {
            assert_eq!(request(text.as_bytes()), Found::Whole(text.len()), "{text:?}");
            assert_eq!(command(text.as_bytes()), name, "{text:?}");
        }
    }

    #[test]
    fn garbage_is_told_from_what_is_not_there_yet() {
        assert_eq!(reply(b"hello\r\n"), Found::Garbage);
        assert_eq!(reply(b"*x\r\n"), Found::Garbage);
        assert_eq!(reply(b"$99999999999\r\n"), Found::Garbage);
        assert_eq!(reply(b"\r\n"), Found::Garbage);
        assert_eq!(reply(b"\x16\x03\x01"), Found::Garbage);
        assert_eq!(request(b"\x16\x03\x01"), Found::Garbage);
    }
}
