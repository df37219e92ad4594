// @platformatic/kafka. Its package is an ES module, which NODE_PATH does not reach: it is imported by its file's address.

const { pathToFileURL } = require('node:url');
const { until, text, sorted, main } = require('./driving.cjs');

const library = import(pathToFileURL(require.resolve('@platformatic/kafka')));

let security = {};

function secure({ mechanism, username, password, ca }) {
  security = { tls: { ca }, sasl: { mechanism, username, password } };
}

const base = (bootstrap, more = {}) => ({ clientId: 'platformatic-test', bootstrapBrokers: [bootstrap], ...security, ...more });

const messages = (topic, count, from = 'v') =>
  Array.from({ length: count }, (_, i) => ({ topic, key: `k${i}`, value: `${from}${i}`, headers: { n: `${i}` } }));

/** A consumer of a group that notes what it read and what it was given. */
class Member {
  constructor(bootstrap, topic, groupId, more = {}) {
    Object.assign(this, { bootstrap, topic, groupId, more, seen: [], gaveUp: 0 });
  }

  get held() {
    return (this.consumer.assignments ?? []).filter(({ topic }) => topic === this.topic).flatMap(({ partitions }) => partitions);
  }

  async start() {
    const { Consumer, stringDeserializers } = await library;
    const classic = { sessionTimeout: 10000, heartbeatInterval: 300, rebalanceTimeout: 10000 };
    const timing = this.more.groupProtocol === 'consumer' ? {} : classic;
    const { isolationLevel = 0, ...more } = this.more;
    this.consumer = new Consumer(
      base(this.bootstrap, { groupId: this.groupId, deserializers: stringDeserializers, maxWaitTime: 100, ...timing, ...more }),
    );
    this.consumer.on('consumer:group:rebalance', () => {
      this.gaveUp += this.held.length;
    });
    this.stream = await this.consumer.consume({
      topics: [this.topic],
      mode: 'committed',
      fallbackMode: 'earliest',
      autocommit: false,
      isolationLevel,
    });
    this.stream.on('data', (message) => this.seen.push(message));
    this.stream.on('error', (error) => console.error(error));
    return this;
  }

  async close() {
    await this.stream.close();
    await this.consumer.close(true);
  }
}

async function read(bootstrap, topic, count, isolationLevel = 0) {
  const group = `${topic}-${isolationLevel}-${Math.random()}`;
  const member = await new Member(bootstrap, topic, group, { isolationLevel }).start();
  await until(() => member.seen.length >= count);
  await new Promise((resolve) => setTimeout(resolve, 300)); // what comes directly behind them
  await member.close();
  return member.seen;
}

const rows = (seen) =>
  sorted(seen.map((found) => [found.partition, Number(found.offset), found.key, found.value, Object.fromEntries(found.headers)]));

const values = (seen) => seen.map(({ value }) => text(value));

async function producer(bootstrap, more = {}) {
  const { Producer, stringSerializers } = await library;
  return new Producer(base(bootstrap, { serializers: stringSerializers, acks: -1, ...more }));
}

async function send(bootstrap, topic, count, more = {}) {
  const client = await producer(bootstrap, more);
  await client.send({ messages: messages(topic, count) });
  await client.close();
}

async function produce({ bootstrap, topic, count }) {
  await send(bootstrap, topic, count);
  return { failed: [], records: rows(await read(bootstrap, topic, count)) };
}

async function idempotent({ bootstrap, topic, count }) {
  await send(bootstrap, topic, count, { idempotent: true });
  return { failed: [], records: rows(await read(bootstrap, topic, count)) };
}

async function compression({ bootstrap, topic, count, codecs }) {
  const counts = {};
  for (const codec of codecs) {
    await send(bootstrap, `${topic}-${codec}`, count, { compression: codec });
    counts[codec] = (await read(bootstrap, `${topic}-${codec}`, count)).length;
  }
  return { failed: [], counts };
}

async function transactions({ bootstrap, source, target, group }) {
  const { Admin } = await library;
  const writer = await producer(bootstrap, { transactionalId: `${group}-writer`, idempotent: true });
  const first = await writer.beginTransaction();
  await first.send({ messages: messages(target, 5, 'aborted') });
  await first.abort();

  const reader = await new Member(bootstrap, source, group, { isolationLevel: 1 }).start();
  await until(() => reader.seen.length >= 10);
  const second = await writer.beginTransaction();
  await second.addConsumer(reader.consumer);
  await second.send({ messages: reader.seen.map(({ key, value }) => ({ topic: target, key, value })) });
  await second.addOffset(reader.seen[9]);
  await second.commit();
  await reader.close();
  await writer.close();
  const admin = new Admin(base(bootstrap));
  let offset = -1;
  await until(async () => {
    const [found] = await admin.listConsumerGroupOffsets({ groups: [group] });
    offset = Number(found.topics[0]?.partitions[0]?.committedOffset ?? -1);
    return offset >= 0;
  });
  await admin.close();
  return {
    committed: values(await read(bootstrap, target, 10, 1)),
    all: (await read(bootstrap, target, 15)).length,
    offset,
  };
}

async function read_committed({ bootstrap, topic, count }) {
  return { values: values(await read(bootstrap, topic, count, 1)) };
}

async function group({ bootstrap, topic, group, strategy }) {
  const more = strategy === 'consumer' ? { groupProtocol: 'consumer' } : {};
  const one = await new Member(bootstrap, topic, group, more).start();
  await until(() => one.held.length === 4);
  const two = await new Member(bootstrap, topic, group, more).start();
  await until(() => one.held.length === 2 && two.held.length === 2);
  const moved = one.gaveUp;
  const shares = [[...one.held].sort(), [...two.held].sort()];
  await new Promise((resolve) => one.stream.once('fetch', resolve)); // asked for what it held before, and would read it
  await send(bootstrap, topic, 40);
  await until(() => one.seen.length + two.seen.length >= 40);
  const seen = values([...one.seen, ...two.seen]).sort();
  await two.close();
  await until(() => one.held.length === 4);
  await one.close();
  return { failed: [], moved, shares, seen };
}

async function admin({ bootstrap, topic }) {
  const { Admin } = await library;
  const client = new Admin(base(bootstrap));
  const resource = { resourceType: 2, resourceName: topic };
  const retention = async () => {
    const [found] = await client.describeConfigs({ resources: [{ ...resource, configurationKeys: null }] });
    return found.configs.find(({ name }) => name === 'retention.ms').value;
  };
  await client.createTopics({ topics: [topic], partitions: 2, replicas: 1, configs: [{ name: 'retention.ms', value: '1000000' }] });
  const created = await retention();
  const configs = [{ name: 'retention.ms', configOperation: 0, value: '2000000' }];
  await client.incrementalAlterConfigs({ resources: [{ ...resource, configs }] });
  const changed = await retention();
  await client.createPartitions({ topics: [{ name: topic, count: 4, assignments: null }] });
  const writer = await producer(bootstrap);
  await writer.send({ messages: messages(topic, 10).map((message) => ({ ...message, partition: 0 })) });
  await writer.close();
  await client.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 4n }] }] });
  const [listed] = await client.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: 0, timestamp: -2n }] }] });
  const groupId = `${topic}-group`;
  await client.alterConsumerGroupOffsets({ groupId, topics: [{ name: topic, partitionOffsets: [{ partition: 0, offset: 7n }] }] });
  const groups = await client.listGroups();
  const [found] = await client.listConsumerGroupOffsets({ groups: [groupId] });
  await client.deleteGroups({ groups: [groupId] });
  await client.deleteTopics({ topics: [topic] });
  await until(async () => !(await client.listTopics()).includes(topic));
  await client.close();
  return {
    created,
    changed,
    start: Number(listed.partitions[0].offset),
    listed: groups.has(groupId),
    committed: Number(found.topics[0].partitions[0].committedOffset),
    gone: true,
  };
}

main({ produce, idempotent, compression, transactions, read_committed, group, admin }, secure);
