//! A server that lies in every way that we could think of.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::thread::{JoinHandle, spawn};

use nix::sys::socket::{ControlMessageOwned, recvmsg};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SOON: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);

/// A server for one connection.
struct Fake {
    dir: tempfile::TempDir,
    server: JoinHandle<()>,
}

impl Fake {
    fn new(serve: impl FnOnce(StdStream) + Send + 'static) -> Self {
        let dir = tempfile::tempdir().expect("made");
        let listener = UnixListener::bind(dir.path().join("s")).expect("bound");
        let server = spawn(move || serve(listener.accept().expect("a client").0));
        Self { dir, server }
    }

    /// Reads one request, then writes this.
    fn answering(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Self::new(move |mut stream| {
            request(&mut stream);
            stream.write_all(&reply).ok();
            // Stays open: what comes next must end by our own bounds.
            stream.read_to_end(&mut Vec::new()).ok();
        })
    }

    async fn connect(&self) -> Connection {
        Connection::open(&self.dir.path().join("s"), LONG)
            .await
            .expect("connected")
    }

    async fn call<R: DeserializeOwned>(self, deadline: Duration) -> Result<R, UrpcError> {
        let mut connection = self.connect().await;
        let result = connection.call("m", json!({}), &[], deadline).await;
        drop(connection);
        self.server.join().expect("the server did not panic");
        result
    }
}

fn request(stream: &mut StdStream) -> Value {
    serde_json::Deserializer::from_reader(stream)
        .into_iter()
        .next()
        .expect("a request")
        .expect("JSON")
}

fn ok(result: &str) -> String {
    format!(r#"{{"success":true,"err":"","result":{result}}}"#)
}

#[tokio::test]
async fn a_good_reply_is_read() {
    let server = Fake::new(|mut stream| {
        assert_eq!(request(&mut stream), json!({"method": "m", "arg": {}}));
        stream.write_all(ok("7").as_bytes()).expect("written");
    });
    assert_eq!(server.call::<i32>(LONG).await.expect("good"), 7);
    // Go writes `{}` for an empty struct, null for nothing; both are no result.
    for nothing in ["{}", "null", "[]"] {
        let result = Fake::answering(ok(nothing)).call::<Option<IgnoredAny>>(LONG);
        assert!(
            !matches!(result.await, Err(UrpcError::Remote { .. })),
            "{nothing}"
        );
    }
}

#[tokio::test]
async fn a_refusal_is_told_in_printable_words_and_the_connection_lives() {
    let server = Fake::new(|mut stream| {
        request(&mut stream);
        let bad = json!({"success": false, "err": "no\u{1b}[2J\nway", "result": null});
        stream
            .write_all(bad.to_string().as_bytes())
            .expect("written");
        request(&mut stream);
        stream.write_all(ok("1").as_bytes()).expect("written");
    });
    let mut connection = server.connect().await;
    let error = connection
        .call::<i32>("m", (), &[], LONG)
        .await
        .expect_err("refused");
    assert_eq!(error.to_string(), "m was refused: no [2J way");
    assert_eq!(
        connection
            .call::<i32>("m", (), &[], LONG)
            .await
            .expect("good"),
        1
    );
    let long = json!({"success": false, "err": "x".repeat(500_000)}).to_string();
    match Fake::answering(long).call::<i32>(LONG).await {
        Err(UrpcError::Remote { message, .. }) => assert_eq!(message.len(), MAX_ERROR),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_endless_reply_ends_at_the_limit() {
    let server = Fake::new(|mut stream| {
        request(&mut stream);
        stream.write_all(br#"{"success":true,"result":""#).ok();
        while stream.write_all(&[b'a'; 4096]).is_ok() {}
    });
    let error = server.call::<String>(LONG).await.expect_err("endless");
    assert_eq!(error.to_string(), "the reply to m is longer than it may be");
}

#[tokio::test]
async fn silence_and_a_trickle_end_at_the_deadline() {
    let silent = Fake::answering("").call::<i32>(SOON).await;
    assert!(
        matches!(silent, Err(UrpcError::Deadline { .. })),
        "{silent:?}"
    );
    let trickle = Fake::new(|mut stream| {
        request(&mut stream);
        stream.write_all(b"{").ok();
        while stream.write_all(b" ").is_ok() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    });
    let error = trickle.call::<i32>(SOON).await;
    assert!(
        matches!(error, Err(UrpcError::Deadline { .. })),
        "{error:?}"
    );
    // It does not even read the request.
    let (keep, kept) = std::sync::mpsc::channel();
    let deaf = Fake::new(move |stream| keep.send(stream).expect("kept"));
    let mut connection = deaf.connect().await;
    let error = connection
        .call::<i32>("m", "x".repeat(4 << 20), &[], SOON)
        .await;
    assert!(
        matches!(error, Err(UrpcError::Deadline { .. })),
        "{error:?}"
    );
    drop(kept);
}

#[tokio::test]
async fn garbage_is_no_reply() {
    let deep = format!(r#"{{"success":true,"result":{}"#, "[".repeat(500_000));
    let deep_and_closed = format!("{deep}{}}}", "]".repeat(500_000));
    for (reply, what) in [
        ("hello".to_owned(), "no JSON object"),
        ("[1]".to_owned(), "no JSON object"),
        ("}".to_owned(), "no JSON object"),
        ("\0{}".to_owned(), "no JSON object"),
        ("{}".to_owned(), "not what it should be"),
        ("{\"success\":1}".to_owned(), "not what it should be"),
        ("{,}".to_owned(), "not what it should be"),
        (ok("\"text\""), "not what it should be"),
        (ok("null"), "without a result"),
        (ok("1") + "{", "followed by more"),
        (deep_and_closed, "not what it should be"),
    ] {
        let shown: String = reply.chars().take(40).collect();
        match Fake::answering(reply).call::<i32>(LONG).await {
            Err(UrpcError::Reply { what: found, .. }) => assert_eq!(found, what, "{shown}"),
            other => panic!("{shown}: {other:?}"),
        }
    }
    let error = Fake::answering(deep).call::<i32>(SOON).await;
    assert!(
        matches!(error, Err(UrpcError::Deadline { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_end_in_mid_reply_is_told_and_poisons() {
    let server = Fake::new(|mut stream| {
        request(&mut stream);
        stream.write_all(br#"{"success":tr"#).expect("written");
    });
    let mut connection = server.connect().await;
    match connection.call::<i32>("m", (), &[], LONG).await {
        Err(UrpcError::Broken { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
        }
        other => panic!("{other:?}"),
    }
    let next = connection.call::<i32>("n", (), &[], LONG).await;
    assert!(matches!(next, Err(UrpcError::Poisoned { .. })), "{next:?}");
}

#[tokio::test]
async fn a_dropped_call_poisons() {
    let server = Fake::answering("");
    let mut connection = server.connect().await;
    let dropped = timeout(SOON, connection.call::<i32>("m", (), &[], LONG)).await;
    dropped.expect_err("no reply comes");
    let next = connection.call::<i32>("n", (), &[], LONG).await;
    assert!(matches!(next, Err(UrpcError::Poisoned { .. })), "{next:?}");
}

#[tokio::test]
async fn files_that_come_with_a_reply_are_dropped() {
    let (read, write) = nix::unistd::pipe().expect("a pipe");
    let server = Fake::new(move |mut stream| {
        request(&mut stream);
        let reply = ok("1");
        let files = [write.as_raw_fd(); 100];
        sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(reply.as_bytes())],
            &[ControlMessage::ScmRights(&files)],
            MsgFlags::empty(),
            None,
        )
        .expect("sent");
    });
    // Held beyond the check.
    let mut connection = server.connect().await;
    let result = connection.call::<i32>("m", json!({}), &[], LONG).await;
    assert_eq!(result.expect("good"), 1);
    server.server.join().expect("joined");
    // The server's own end went with its thread. Were one of the hundred here, this would wait for ever.
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        File::from(read).read_to_end(&mut rest).map(|_| rest)
    });
    let rest = timeout(LONG, rest).await.expect("closed").expect("joined");
    assert_eq!(rest.expect("read"), b"");
}

#[tokio::test]
async fn files_go_with_the_first_byte_in_their_order() {
    let server = Fake::new(|mut stream| {
        let mut space = nix::cmsg_space!([i32; 8]);
        let mut first = [0];
        let mut into = [IoSliceMut::new(&mut first)];
        let message = recvmsg::<()>(
            stream.as_raw_fd(),
            &mut into,
            Some(&mut space),
            MsgFlags::empty(),
        )
        .expect("received");
        let files: Vec<i32> = message
            .cmsgs()
            .expect("whole")
            .flat_map(|control| match control {
                ControlMessageOwned::ScmRights(files) => files,
                _ => Vec::new(),
            })
            .collect();
        assert_eq!((first, files.len()), ([b'{'], 2));
        for (number, file) in files.into_iter().enumerate() {
            let mut copy = File::options()
                .write(true)
                .open(format!("/proc/self/fd/{file}"))
                .expect("received");
            nix::unistd::close(file).expect("open");
            write!(copy, "{number}").expect("written");
        }
        let mut rest = [0; 4096];
        let read = stream.read(&mut rest).expect("the rest");
        assert!(rest[..read].starts_with(b"\"method\""));
        stream.write_all(ok("1").as_bytes()).expect("written");
    });
    let mut connection = server.connect().await;
    let mut files = [
        tempfile::tempfile().expect("made"),
        tempfile::tempfile().expect("made"),
    ];
    let given: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    connection
        .call::<i32>("m", (), &given, LONG)
        .await
        .expect("good");
    for (number, file) in files.iter_mut().enumerate() {
        use std::io::Seek;
        let mut text = String::new();
        file.rewind().expect("rewound");
        file.read_to_string(&mut text).expect("read");
        assert_eq!(text, number.to_string());
    }
}

#[tokio::test]
async fn nobody_there_is_told() {
    let dir = tempfile::tempdir().expect("made");
    let error = Connection::open(&dir.path().join("none"), LONG)
        .await
        .expect_err("nobody");
    assert!(matches!(error, UrpcError::Connect { .. }), "{error:?}");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // With all that could confuse: quotes, backslashes, brackets.
        "[\"\\\\{}\\[\\],:a\u{1f600}\n]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[\"\\\\{}a]{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn the_end_of_an_object_is_found_exactly(value in any_json(), piece in 1_usize..9, blanks in "[ \n]{0,3}") {
        let text = format!("{blanks}{}", json!({ "result": value }));
        let mut extent = Extent::default();
        let mut left = text.len();
        for piece in text.as_bytes().chunks(piece) {
            left -= piece.len();
            let scan = extent.feed(piece);
            prop_assert!(matches!((left, scan), (0, Scan::Whole) | (1.., Scan::More)), "{text}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut extent = Extent::default();
        extent.feed(&bytes);
        drop(decode::<i32>("m", &bytes));
    }
}
