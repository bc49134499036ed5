package eventlog

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	errOldServer = errors.New("NATS does not support atomic batches, which replicated streams need: nats-server 2.12 or newer is required")
	errStalled   = errors.New("stalled after it confirmed its election")
	// errUnreachable means that JetStream cannot create or delete streams at the moment.
	errUnreachable = errors.New("JetStream does not answer")
	errEtcd        = errors.New("etcd")
)

func etcdError(err error) error { return fmt.Errorf("%w: %w", errEtcd, err) }

// Error codes of JetStream that its client does not name.
const (
	codeAccountResources  = 10002
	codeNoPeers           = 10005
	codeResources         = 10023
	codeMaximumStreams    = 10027
	codeMemoryResources   = 10028
	codeNotEnabledAccount = 10039
	codeStorageResources  = 10047
	codeInvalidConfig     = 10052
	codeNotEnabled        = 10076
	codeReplicas          = 10074
	codeSealed            = 10109
	codeMaxBytesRequired  = 10113
	codeNoLimits          = 10120
	codeBatchDisabled     = 10174
	codeBatchIncomplete   = 10176
	codeBatchTooLarge     = 10199
	codeBatchesInFlight   = 10210
)

func errorCode(err error) int {
	var refused jetstream.JetStreamError
	if errors.As(err, &refused) && refused.APIError() != nil {
		return int(refused.APIError().ErrorCode)
	}
	return 0
}

// noRoom reports whether a stream was refused because of its size. A cluster says only that it
// has no suitable peers.
func noRoom(err error) bool {
	switch errorCode(err) {
	case codeMemoryResources, codeStorageResources, codeNoPeers:
		return true
	}
	return false
}

// external reports whether the cause of an error lies outside the stream, so that recreating it
// would not help: the connection, JetStream as a whole, permissions, storage, or etcd.
func external(err error) bool {
	switch errorCode(err) {
	case codeAccountResources, codeNoPeers, codeResources, codeMaximumStreams, codeMemoryResources,
		codeNotEnabledAccount, codeStorageResources, codeNotEnabled, codeReplicas, codeMaxBytesRequired, codeNoLimits:
		return true
	}
	for _, other := range []error{
		errConnectionLost, errDeposed, errOldServer, errUnreachable, errStalled, errEtcd, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting,
		nats.ErrDisconnected, nats.ErrPermissionViolation, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount,
	} {
		if errors.Is(err, other) {
			return true
		}
	}
	return false
}

// batchRefused reports whether only batches are refused, so that single messages may succeed. A
// server limits the open batches, and other clients may have opened as many without completing
// them.
func batchRefused(err error) bool {
	switch errorCode(err) {
	case codeBatchDisabled, codeBatchIncomplete, codeBatchTooLarge, codeBatchesInFlight:
		return true
	}
	return false
}

// unusable reports whether an error says that a stream has a wrong configuration that an update
// cannot change.
func unusable(err error) bool {
	switch errorCode(err) {
	case codeInvalidConfig, codeSealed:
		return true
	}
	return false
}
