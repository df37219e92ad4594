// KafkaJS.

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs');
const { until, text, sorted, main } = require('./driving.cjs');

let security = {};

function secure({ mechanism, username, password, ca }) {
  security = { ssl: { ca: [ca] }, sasl: { mechanism: mechanism.toLowerCase(), username, password } };
}

const connect = (bootstrap) =>
  new Kafka({ clientId: 'kafkajs-test', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 8 }, ...security });

const messages = (count, from = 'v') =>
  Array.from({ length: count }, (_, i) => ({ key: `k${i}`, value: `${from}${i}`, headers: { n: `${i}` } }));

/** A consumer of a group that notes what it read and what it was given. */
class Member {
  constructor(kafka, topic, groupId, more = {}) {
    this.seen = [];
    this.held = [];
    this.gaveUp = 0;
    this.consumer = kafka.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 300, maxWaitTimeInMs: 200, ...more });
    this.consumer.on(this.consumer.events.GROUP_JOIN, ({ payload }) => {
      this.held = payload.memberAssignment[topic] ?? [];
    });
    this.consumer.on(this.consumer.events.REBALANCING, () => {
      this.gaveUp += this.held.length;
      this.held = [];
    });
    this.topic = topic;
  }

  async start() {
    await this.consumer.connect();
    await this.consumer.subscribe({ topics: [this.topic], fromBeginning: true });
    await this.consumer.run({ autoCommit: false, eachMessage: async (found) => void this.seen.push(found) });
    return this;
  }

  async close() {
    await this.consumer.disconnect();
  }
}

/** KafkaJS reads in groups only. */
async function read(bootstrap, topic, count, readUncommitted = true) {
  const group = `${topic}-${readUncommitted}-${Math.random()}`;
  const member = await new Member(connect(bootstrap), topic, group, { readUncommitted }).start();
  await until(() => member.seen.length >= count);
  await new Promise((resolve) => setTimeout(resolve, 300)); // what comes directly behind them
  await member.close();
  return member.seen;
}

const rows = (seen) =>
  sorted(
    seen.map(({ partition, message }) => [
      partition,
      Number(message.offset),
      text(message.key),
      text(message.value),
      Object.fromEntries(Object.entries(message.headers).map(([name, value]) => [name, text(value)])),
    ]),
  );

const values = (seen) => seen.map(({ message }) => text(message.value));

async function send(bootstrap, topic, count, settings = {}, more = {}) {
  const producer = connect(bootstrap).producer(settings);
  await producer.connect();
  await producer.send({ topic, acks: -1, messages: messages(count), ...more });
  await producer.disconnect();
}

async function produce({ bootstrap, topic, count }) {
  await send(bootstrap, topic, count);
  return { failed: [], records: rows(await read(bootstrap, topic, count)) };
}

async function idempotent({ bootstrap, topic, count }) {
  await send(bootstrap, topic, count, { idempotent: true, maxInFlightRequests: 1 });
  return { failed: [], records: rows(await read(bootstrap, topic, count)) };
}

async function compression({ bootstrap, topic, count, codecs }) {
  const counts = {};
  for (const codec of codecs) {
    const compression = { gzip: CompressionTypes.GZIP }[codec];
    await send(bootstrap, `${topic}-${codec}`, count, {}, { compression });
    counts[codec] = (await read(bootstrap, `${topic}-${codec}`, count)).length;
  }
  return { failed: [], counts };
}

async function transactions({ bootstrap, source, target, group }) {
  const kafka = connect(bootstrap);
  const writer = kafka.producer({ transactionalId: `${group}-writer`, idempotent: true, maxInFlightRequests: 1 });
  await writer.connect();
  const first = await writer.transaction();
  await first.send({ topic: target, messages: messages(5, 'aborted') });
  await first.abort();

  const reader = await new Member(kafka, source, group, { readUncommitted: false }).start();
  await until(() => reader.seen.length >= 10);
  const second = await writer.transaction();
  await second.send({ topic: target, messages: reader.seen.map(({ message }) => ({ key: message.key, value: message.value })) });
  const offset = String(Number(reader.seen[9].message.offset) + 1);
  await second.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions: [{ partition: 0, offset }] }] });
  await second.commit();
  await reader.close();
  await writer.disconnect();
  const admin = kafka.admin();
  await admin.connect();
  let committed = -1;
  await until(async () => {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [source] });
    committed = Number(found.partitions[0].offset);
    return committed >= 0;
  });
  await admin.disconnect();
  return {
    committed: values(await read(bootstrap, target, 10, false)),
    all: (await read(bootstrap, target, 15)).length,
    offset: committed,
  };
}

async function read_committed({ bootstrap, topic, count }) {
  return { values: values(await read(bootstrap, topic, count, false)) };
}

async function group({ bootstrap, topic, group }) {
  const one = await new Member(connect(bootstrap), topic, group).start();
  await until(() => one.held.length === 4);
  const two = await new Member(connect(bootstrap), topic, group).start();
  await until(() => one.held.length === 2 && two.held.length === 2);
  const moved = one.gaveUp;
  const shares = [[...one.held].sort(), [...two.held].sort()];
  await send(bootstrap, topic, 40);
  await until(() => one.seen.length + two.seen.length >= 40);
  const seen = values([...one.seen, ...two.seen]).sort();
  await two.close();
  await until(() => one.held.length === 4);
  await one.close();
  return { failed: [], moved, shares, seen };
}

async function admin({ bootstrap, topic }) {
  const kafka = connect(bootstrap);
  const client = kafka.admin();
  await client.connect();
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const retention = async () => {
    const { resources } = await client.describeConfigs({ resources: [resource], includeSynonyms: false });
    return resources[0].configEntries.find((entry) => entry.configName === 'retention.ms').configValue;
  };
  const configEntries = (value) => [{ name: 'retention.ms', value }];
  await client.createTopics({ topics: [{ topic, numPartitions: 2, configEntries: configEntries('1000000') }], waitForLeaders: true });
  const created = await retention();
  await client.alterConfigs({ resources: [{ ...resource, configEntries: configEntries('2000000') }] });
  const changed = await retention();
  await client.createPartitions({ topicPartitions: [{ topic, count: 4 }] });
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic, messages: messages(10).map((message) => ({ ...message, partition: 0 })) });
  await producer.disconnect();
  await client.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] });
  const offsets = await client.fetchTopicOffsets(topic);
  const groupId = `${topic}-group`;
  await client.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '7' }] });
  const { groups } = await client.listGroups();
  const [found] = await client.fetchOffsets({ groupId, topics: [topic] });
  await client.deleteGroups([groupId]);
  await client.deleteTopics({ topics: [topic] });
  await until(async () => !(await client.listTopics()).includes(topic));
  await client.disconnect();
  return {
    created,
    changed,
    start: Number(offsets.find(({ partition }) => partition === 0).low),
    listed: groups.some((each) => each.groupId === groupId),
    committed: Number(found.partitions.find(({ partition }) => partition === 0).offset),
    gone: true,
  };
}

main({ produce, idempotent, compression, transactions, read_committed, group, admin }, secure);
