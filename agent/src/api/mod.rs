//! The gRPC API on the local socket.
